#include "engine/api/engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "cpu_optim/convert.h"
#include "engine/api/engine_plan.h"
#include "engine/base/math.h"
#include "engine/base/trace.h"
#include "engine/memory/master_codec.h"

namespace sluice {
namespace {

double seconds_between(std::chrono::steady_clock::time_point begin,
                       std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// To the compute dtype, rounded to nearest even.
void put_row(std::span<const float> row, DType dtype, std::byte* out) {
  if (dtype == DType::f32) {
    std::memcpy(out, row.data(), row.size_bytes());
  } else {
    cpu_optim::convert(row, std::span(reinterpret_cast<BFloat16*>(out), row.size()));
  }
}

std::vector<std::string> numbers_below(size_t end) {
  std::vector<std::string> numbers;
  for (size_t number = 0; number < end; ++number) numbers.push_back(std::to_string(number));
  return numbers;
}

}  // namespace

Engine::Engine(gpu::Device& device, Executor& executor, ModelSpec model, WalkSpec walk, EngineOptions options)
    : device_(device),
      executor_(executor),
      options_(std::move(options)),
      model_(std::move(model)),
      walk_(std::move(walk)),
      plan_(plan_for(device, model_, walk_, options_)),
      layer_names_(numbers_below(plan_.boundary_offsets.size())),
      device_budget_(Tier::device, options_.device_limit_bytes),
      host_budget_(Tier::host, options_.host_limit_bytes) {
  StateFile* const file = options_.state_file;
  SLUICE_CHECK(file != nullptr || !options_.disk, "a disk tier needs a state file");
  if (file != nullptr) {
    queue_ = options_.make_queue({});
    row_queue_ = options_.make_queue({});
  }
  store_ = std::make_unique<TensorStore>(model_, device, host_budget_, options_.training, plan_.homes,
                                         DiskTier{file, queue_.get()});
  const size_t device_bytes = plan_.peak_bytes(Tier::device);
  device_reservation_ = device_budget_.reserve(device_bytes, "the plan");
  device_memory_ = device.allocate(device_bytes);
  tape_ =
      std::make_unique<Tape>(plan_, plan_request(device, model_, walk_, options_), device_memory_->data());
  compute_ = device.make_stream(gpu::StreamKind::compute, "compute");
  row_staging_ = std::make_unique<HostArena>(
      host_budget_, device, fetched_row_bytes(walk_, options_.compute_dtype), "embedding rows");
  if (options_.training) {
    if (!walk_.row_gradient_tensors.empty()) {
      row_gradients_ = std::make_unique<HostArena>(host_budget_, device, fetched_row_bytes(walk_, DType::f32),
                                                   "embedding gradient rows");
    }
    optimizer_ =
        std::make_unique<Optimizer>(*store_, device, executor, host_budget_,
                                    waiting_dtypes(model_, walk_, options_.gradient_dtype_or_default()),
                                    options_.optimizer, plan_, options_.make_queue);
  }
  mover_ = std::make_unique<Mover>(device);
  const size_t staging_bytes = plan_.part(plan_part::kStaging).size_bytes;
  staging_ = std::make_unique<HostArena>(host_budget_, device, staging_bytes, plan_part::kStaging);
  if (staging_bytes > 0) {
    reader_ = std::make_unique<DiskReader>(device, *store_, options_.make_queue({staging_->bytes()}),
                                           options_.compute_dtype);
  }
  prefetcher_ =
      std::make_unique<Prefetcher>(plan_, *store_, *mover_, options_.compute_dtype,
                                   device_part(plan_part::kLanding), reader_.get(), staging_->data());
  if (plan_.boundary_tier != Tier::device) {
    input_store_ = std::make_unique<HostArena>(
        host_budget_, device, plan_.part(plan_part::kBoundaryStore).size_bytes, plan_part::kBoundaryStore);
    input_offload_ = std::make_unique<InputOffload>(
        plan_, device, *mover_, *compute_,
        InputOffload::Memory{device_part(plan_part::kBoundaries), input_store_->bytes()}, layer_names_, file,
        options_.make_queue);
  }
  slot_free_.resize(static_cast<size_t>(plan_.ring_slot_count) + plan_.kept_slot_offsets.size());
  lease_counts_.resize(slot_free_.size());
  gradient_ring_ = SlotRing(device_part(plan_part::kGradients),
                            plan_.gradient_slot_bytes * static_cast<size_t>(options_.gradient_shards),
                            plan_.gradient_slot_count);
  const PlanPart& copies = plan_.part(plan_part::kGradientCopies);
  const int copy_slots = std::max(plan_.gradient_slot_count, 1);
  gradient_copy_ring_ = SlotRing(device_part(plan_part::kGradientCopies),
                                 copies.size_bytes / static_cast<size_t>(copy_slots), copy_slots);
}

// Whatever the thread works on next, it is none of the model's blocks.
Engine::~Engine() {
  set_label({});
}

void Engine::set_label(std::string_view verb, std::string_view subject) {
  this_thread_label() = {verb, subject, this_thread_label().step};
}

std::byte* Engine::device_part(std::string_view name) const {
  return device_memory_->data() + plan_.part(name).offset;
}

void Engine::submit(gpu::Op op) {
  const PlanPart& workspace = plan_.part(plan_part::kWorkspace);
  device_.ops().submit(*compute_, std::move(op),
                       {device_memory_->data() + workspace.offset, workspace.size_bytes});
}

void Engine::begin_walk() {
  SLUICE_CHECK(walk_number_ == 0 || next_access_ == static_cast<int>(plan_.accesses.size()),
               "a walk ended before its last access");
  prefetcher_->begin_walk(walk_number_ == 0);
  ++walk_number_;
  next_access_ = 0;
  set_label("begin");
}

int Engine::slot_id(const PlannedAccess& access) const {
  return access.kept_slot >= 0 ? plan_.ring_slot_count + access.kept_slot : access.ring_slot;
}

std::optional<gpu::Event>& Engine::slot_free(int slot) {
  return slot_free_.at(static_cast<size_t>(slot));
}

std::byte* Engine::slot_memory(const PlannedAccess& access) const {
  if (access.kept_slot >= 0) {
    return device_part(plan_part::kKept) + plan_.kept_slot_offsets.at(static_cast<size_t>(access.kept_slot));
  }
  return device_part(plan_part::kRing) + plan_.ring_slot_bytes * static_cast<size_t>(access.ring_slot);
}

// The landed bytes are of no use afterwards.
void Engine::prepare(BlockId block, const PreparedBlock& prepared, std::byte* landed) {
  submit_preparation(store_->layout(block), model_.block(block), options_.compute_dtype, prepared, landed,
                     [this](gpu::Op op) { submit(std::move(op)); });
}

Lease Engine::acquire(BlockId block) {
  const PlannedAccess& access = plan_.accesses.at(static_cast<size_t>(next_access_));
  SLUICE_CHECK(access.access.block == block, "leases must follow the walk's accesses");
  const int slot = slot_id(access);
  PreparedBlock prepared =
      lay_out_block(device_, model_, block, options_.compute_dtype, access.layouts, slot_memory(access));
  if (prefetcher_->fetches(next_access_)) {
    SLUICE_CHECK(lease_counts_[static_cast<size_t>(slot)] == 0,
                 "more leases at a time than WalkSpec::concurrent_leases");
    const Prefetcher::Landed landed = prefetcher_->take(next_access_);
    compute_->wait(landed.copied);
    if (slot_free(slot)) compute_->wait(*slot_free(slot));
    const WorkScope work("prepare", model_.block(block).name);
    prepare(block, prepared, landed.data);
    prefetcher_->release(landed.slot, compute_->record());
  }
  if (input_offload_ && access.access.tape_layer >= 0) {
    if (access.access.phase == Phase::forward) input_offload_->begin_forward(access.access.tape_layer);
    if (access.access.phase == Phase::backward) input_offload_->begin_backward(access.access.tape_layer);
  }
  ++lease_counts_[static_cast<size_t>(slot)];
  set_label(name(access.access.phase), model_.block(block).name);
  return Lease(*this, next_access_++, *compute_, std::move(prepared));
}

void Engine::release(int access, gpu::Event last_use) {
  const PlannedAccess& planned = plan_.accesses.at(static_cast<size_t>(access));
  const int slot = slot_id(planned);
  if (input_offload_ && planned.access.tape_layer >= 0 && planned.access.phase == Phase::forward)
    input_offload_->end_forward(planned.access.tape_layer);
  --lease_counts_.at(static_cast<size_t>(slot));
  // A kept block may have been leased on another stream before: what is prepared here next comes after both.
  if (slot_free(slot)) compute_->wait(*slot_free(slot));
  slot_free(slot) = std::move(last_use);
}

void Engine::wait_for_copy(const Ticket& ticket) {
  compute_->wait(ticket.wait_enqueued());
}

// Rows of the newest weights, in the compute dtype, into the staging memory. Sets `disk_begin` where some are
// on disk.
gpu::Task Engine::gather_task(TensorId tensor, std::vector<int32_t> rows, DiskBegin& disk_begin) {
  const size_t cols = static_cast<size_t>(model_.tensor(tensor).cols);
  const size_t row_bytes = cols * size_bytes(options_.compute_dtype);
  std::byte* const staging = row_staging_->data();
  SLUICE_CHECK(rows.size() * row_bytes <= row_staging_->size_bytes(), "more than WalkSpec::max_fetched_rows");
  gpu::Task task{
      .name = "gather rows", .accesses = {gpu::writes(staging, rows.size() * row_bytes)}, .body = {}};
  std::vector<int> slots;  // by row
  for (const int32_t row : rows) {
    const BlockId block = store_->find(tensor, row).block;
    slots.push_back(store_->newest_slot(block));
    const bool on_disk = store_->home(block).weights == Tier::disk;
    if (on_disk && !disk_begin) disk_begin = std::make_shared<std::chrono::steady_clock::time_point>();
    const std::byte* begin = on_disk ? store_->disk_token(block) : store_->weights(block);
    const size_t block_bytes = on_disk ? 1 : store_->layout(block).weight_bytes();
    if (std::ranges::none_of(task.accesses, [&](const gpu::MemoryAccess& a) { return a.begin == begin; })) {
      task.accesses.push_back(gpu::reads(begin, block_bytes));
    }
  }
  task.body = [this, tensor, rows = std::move(rows), slots = std::move(slots), cols, row_bytes, staging,
               disk_begin] {
    if (disk_begin) *disk_begin = std::chrono::steady_clock::now();
    std::vector<float> values(cols);
    std::optional<StateWindow> window;
    for (size_t i = 0; i < rows.size(); ++i) {
      const TensorStore::Place place = store_->find(tensor, rows[i]);
      std::byte* const out = staging + i * row_bytes;
      if (store_->home(place.block).weights == Tier::disk) {
        if (!window) window.emplace(*store_->file(), *row_queue_);
        gather_from_disk(place, slots[i], *window, values, out);
        continue;
      }
      const BlockLayout::Part& part = store_->layout(place.block).part(place.part);
      if (options_.compute_dtype == DType::bf16 && part.trainable) {
        // The weight that a lease offers is the high one, not a new rounding.
        const BFloat16* high =
            store_->state(place.block).high.data() + part.span_begin + place.row * part.cols;
        std::memcpy(out, high, row_bytes);
        continue;
      }
      store_->read_rows(tensor, rows[i], 1, values.data());
      put_row(values, options_.compute_dtype, out);
    }
  };
  return task;
}

// `row` is scratch.
void Engine::gather_from_disk(const TensorStore::Place& place, int slot, StateWindow& window,
                              std::span<float> row, std::byte* out) const {
  const BlockLayout::Part& part = store_->layout(place.block).part(place.part);
  const size_t first = static_cast<size_t>(place.row * part.cols);
  if (!part.trainable) {
    const size_t element_bytes = size_bytes(part.storage_dtype);
    std::vector<std::byte> stored(row.size() * element_bytes);
    window.read(place.block, Section::frozen, 0, part.frozen_offset + first * element_bytes, stored);
    if (part.storage_dtype == options_.compute_dtype) {
      std::memcpy(out, stored.data(), stored.size());
      return;
    }
    if (part.storage_dtype == DType::f32) {
      std::memcpy(row.data(), stored.data(), stored.size());
    } else {
      cpu_optim::convert(std::span(reinterpret_cast<const BFloat16*>(stored.data()), row.size()), row);
    }
    put_row(row, options_.compute_dtype, out);
    return;
  }
  const int64_t begin = part.span_begin + static_cast<int64_t>(first);
  if (options_.compute_dtype == DType::bf16) {
    window.read(place.block, Section::high, slot, static_cast<size_t>(begin) * 2, {out, row.size() * 2});
    return;
  }
  read_masters(model_.state_format, begin, row, [&](Section section, size_t at, std::span<std::byte> bytes) {
    window.read(place.block, section, slot, at, bytes);
  });
  put_row(row, options_.compute_dtype, out);
}

void Engine::fetch_rows(TensorId tensor, std::vector<int32_t> rows, std::byte* rows_out) {
  if (rows.empty()) return;
  const WorkScope work("embedding rows");
  Mover::Fetch fetch{.device = rows_out,
                     .host = row_staging_->data(),
                     .size_bytes = rows.size() * static_cast<size_t>(model_.tensor(tensor).cols) *
                                   size_bytes(options_.compute_dtype),
                     .host_ready = {},
                     .device_free = compute_->record(),
                     .gather = {}};
  if (row_staging_free_) fetch.host_ready.push_back(*row_staging_free_);
  for (int32_t block = -1; const int32_t row : rows) {
    const BlockId at = store_->find(tensor, row).block;
    if (at.value == block) continue;
    block = at.value;
    if (const auto& ready = store_->version_ready(at)) fetch.host_ready.push_back(*ready);
  }
  fetch.gather = gather_task(tensor, std::move(rows), fetch.disk_begin);
  const gpu::Event copied = mover_->fetch(std::move(fetch)).wait_enqueued();
  row_staging_free_ = copied;
  compute_->wait(copied);
}

void Engine::upload(std::byte* device, const void* host, size_t size_bytes) {
  if (size_bytes == 0) return;
  const WorkScope work("inputs");
  wait_for_copy(mover_->fetch({.device = device,
                               .host = static_cast<const std::byte*>(host),
                               .size_bytes = size_bytes,
                               .host_ready = {},
                               .device_free = compute_->record(),
                               .gather = {}}));
}

gpu::Event Engine::download(void* host, const std::byte* device, size_t size_bytes) {
  const WorkScope work("losses");
  return mover_->send(compute_->record(), host, device, size_bytes);
}

void Engine::wait() {
  const TraceWait wait("wait for everything");
  compute_->record().wait();
  mover_->wait_sent();
  if (optimizer_) optimizer_->wait();
}

PendingSave Engine::save(GenerationFacts facts) {
  SLUICE_CHECK(optimizer_ != nullptr, "only training has a state to save");
  return optimizer_->save(std::move(facts));
}

void Engine::restore() {
  SLUICE_CHECK(walk_number_ == 0 && optimizer_ != nullptr && options_.state_file != nullptr);
  const Generation& generation = options_.state_file->generation();
  store_->restore(generation.slots);
  optimizer_->restore(generation.facts.applied_step);
}

void Engine::attach(StateFile& file, const IoQueueFactory& make_queue) {
  SLUICE_CHECK(optimizer_ != nullptr && options_.state_file == nullptr && options_.can_save);
  store_->attach(file);
  optimizer_->attach(make_queue);
}

uint64_t Engine::state_hash() {
  wait();
  return store_->hash();
}

// The norm comes after every gradient's copy, and these after compute: waiting for the links one by one adds
// no order, and tells which of them is late.
UpdateReport Engine::update_report() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  compute_->record().wait();
  const Clock::time_point computed = Clock::now();
  mover_->wait_sent();
  const Clock::time_point arrived = Clock::now();
  const UpdateReport report = optimizer_->report();
  report_waited_.compute += seconds_between(begin, computed);
  report_waited_.copy_out += seconds_between(computed, arrived);
  const Clock::time_point decided = Clock::now();
  report_waited_.optimizer += seconds_between(arrived, decided);
  if (TraceLane* lane = this_thread_lane()) {
    lane->add_wait("wait for compute", trace_time_ns(begin), trace_time_ns(computed));
    lane->add_wait("wait for gradients", trace_time_ns(computed), trace_time_ns(arrived));
    lane->add_wait("wait for the norm", trace_time_ns(arrived), trace_time_ns(decided));
  }
  return report;
}

Engine::Counters Engine::counters() const {
  Waited waited = report_waited_;
  waited.copy_in += mover_->fetch_waits().enqueue_seconds;
  waited.disk += mover_->fetch_waits().disk_seconds;
  waited.optimizer += mover_->fetch_waits().host_seconds;
  return {.acquire_blocked_seconds = prefetcher_->blocked_seconds(),
          .waited = waited,
          .copied_in_bytes = prefetcher_->fetched_bytes(),
          .copied_out_bytes = copied_out_bytes_};
}

}  // namespace sluice
