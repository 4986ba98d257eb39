#include "engine/train/input_offload.h"

#include "engine/base/work_label.h"

namespace sluice {

InputOffload::InputOffload(const Plan& plan, gpu::Device& device, Mover& mover, gpu::Stream& compute,
                           Memory memory, std::span<const std::string> layer_names, StateFile* file,
                           const IoQueueFactory& make_queue)
    : plan_(plan),
      mover_(mover),
      compute_(compute),
      memory_(memory),
      layer_count_(static_cast<int>(plan.boundary_offsets.size())),
      layer_names_(layer_names),
      slot_layers_(static_cast<size_t>(plan.boundary_slot_count), -1),
      left_(slot_layers_.size()),
      away_(static_cast<size_t>(layer_count_)),
      staging_(memory.store.data(), plan.boundary_slot_bytes, plan.boundary_staging_count),
      file_(file) {
  if (plan_.boundary_tier != Tier::disk) return;
  queue_ = make_queue({memory_.store});
  lane_ = device.make_stream(gpu::StreamKind::cpu, "layer inputs");
}

void InputOffload::begin_forward(int layer) {
  if (layer == 0) slot_layers_[0] = 0;  // the first input is written without a lease
  const size_t output = static_cast<size_t>(slot_of(layer + 1));
  if (left_[output]) compute_.wait(*left_[output]);
  left_[output].reset();
  slot_layers_[output] = layer + 1;
}

void InputOffload::end_forward(int layer) {
  if (!leaves(layer)) return;
  const size_t at = static_cast<size_t>(layer);
  const WorkScope work(kWork, layer_names_[at]);
  const gpu::Event used = compute_.record();
  std::optional<gpu::Event>& left = left_[static_cast<size_t>(slot_of(layer))];
  if (plan_.boundary_tier == Tier::host) {
    left = mover_.send(used, memory_.store.data() + at * plan_.boundary_slot_bytes, slot(layer),
                       plan_.boundary_slot_bytes);
    away_[at] = left;
    return;
  }
  const int staging_slot = next_staging_slot();
  if (const auto& free = staging_.free_after(staging_slot)) mover_.send_after(*free);
  left = mover_.send(used, staging_.slot(staging_slot), slot(layer), plan_.boundary_slot_bytes);
  lane_->wait(*left);
  away_[at] = write(piece(layer, staging_slot));
  staging_.release(staging_slot, *away_[at]);
}

void InputOffload::begin_backward(int layer) {
  if (arrival_) {
    const gpu::Event copied = arrival_->ticket.wait_enqueued();
    compute_.wait(copied);
    if (arrival_->staging_slot >= 0) staging_.release(arrival_->staging_slot, copied);
    arrival_.reset();
  }
  SLUICE_CHECK(slot_layers_[static_cast<size_t>(slot_of(layer))] == layer, "layers must come in order");
  if (layer > 0 && slot_layers_[static_cast<size_t>(slot_of(layer - 1))] != layer - 1) fetch(layer - 1);
}

void InputOffload::fetch(int layer) {
  slot_layers_[static_cast<size_t>(slot_of(layer))] = layer;
  const WorkScope work(kWork, layer_names_[static_cast<size_t>(layer)]);
  arrival_ = Arrival{Ticket(), -1};
  Mover::Fetch fetch{.device = slot(layer),
                     .host = memory_.store.data() + static_cast<size_t>(layer) * plan_.boundary_slot_bytes,
                     .size_bytes = plan_.boundary_slot_bytes,
                     .host_ready = {*away_[static_cast<size_t>(layer)]},
                     .device_free = compute_.record(),
                     .gather = {}};
  if (plan_.boundary_tier == Tier::disk) {
    const int staging_slot = next_staging_slot();
    arrival_->staging_slot = staging_slot;
    staging_.wait_free(staging_slot, *lane_);
    fetch.host = staging_.slot(staging_slot);
    fetch.host_ready = {read(piece(layer, staging_slot))};
    // Whatever was to be waited for before was a write to the drive.
    fetch.disk_begin = std::make_shared<std::chrono::steady_clock::time_point>();
  }
  arrival_->ticket = mover_.fetch(std::move(fetch));
}

int InputOffload::next_staging_slot() {
  const int slot = next_staging_;
  next_staging_ = (next_staging_ + 1) % staging_.slot_count();
  return slot;
}

StatePiece InputOffload::piece(int layer, int staging_slot) const {
  return {.block = BlockId{layer},
          .section = Section::layer_input,
          .slot = 0,
          .begin = 0,
          .size_bytes = plan_.boundary_slot_bytes,
          .data = staging_.slot(staging_slot)};
}

gpu::Event InputOffload::write(const StatePiece& piece) {
  lane_->run({.name = "write layer input",
              .accesses = {gpu::reads(piece.data, piece.size_bytes)},
              .body = [this, piece] {
                file_->write_pieces(*queue_, {&piece, 1});
              }});
  return lane_->record();
}

gpu::Event InputOffload::read(const StatePiece& piece) {
  lane_->run({.name = "read layer input",
              .accesses = {gpu::writes(piece.data, piece.size_bytes)},
              .body = [this, piece] {
                file_->read_pieces(*queue_, {&piece, 1});
              }});
  return lane_->record();
}

}  // namespace sluice
