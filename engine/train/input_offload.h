#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/memory/slot_ring.h"
#include "engine/memory/tensor_store.h"
#include "engine/schedule/mover.h"
#include "engine/schedule/plan.h"
#include "gpu/device.h"

namespace sluice {

// The inputs of tape layers that leave the device between forward and backward (Plan::boundary_tier): through
// a few slots of device memory, to the host tier or, through staging slots there, to disk. The last layers'
// inputs stay in their slots. The engine tells it of each layer, in the order of the walk; used by the
// trainer's thread.
class InputOffload {
 public:
  struct Memory {
    std::byte* slots = nullptr;  // device, part "layer inputs"
    std::span<std::byte> store;  // host, part "layer inputs that left the device"
  };
  // `layer_names`, by tape layer, outlive the lanes of `mover` and `compute`, whose work is named by them.
  // `file` and `make_queue` where the inputs are on disk.
  InputOffload(const Plan& plan, gpu::Device& device, Mover& mover, gpu::Stream& compute, Memory memory,
               std::span<const std::string> layer_names, StateFile* file, const IoQueueFactory& make_queue);

  // compute() may write the layer's output, the next layer's input.
  void begin_forward(int layer);
  // All that reads the layer's input in forward has been submitted: it leaves.
  void end_forward(int layer);
  // compute() finds the layer's input in its slot; the one before is on its way.
  void begin_backward(int layer);

 private:
  struct Arrival {
    Ticket ticket;
    int staging_slot = -1;
  };
  bool leaves(int layer) const { return layer < layer_count_ - slot_count(); }
  int slot_count() const { return static_cast<int>(slot_layers_.size()); }
  int slot_of(int layer) const { return layer % slot_count(); }
  std::byte* slot(int layer) const {
    return memory_.slots + static_cast<size_t>(slot_of(layer)) * plan_.boundary_slot_bytes;
  }
  int next_staging_slot();
  void fetch(int layer);
  StatePiece piece(int layer, int staging_slot) const;
  gpu::Event write(const StatePiece& piece);
  gpu::Event read(const StatePiece& piece);

  const Plan& plan_;
  Mover& mover_;
  gpu::Stream& compute_;
  const Memory memory_;
  static constexpr std::string_view kWork = "input of layer";
  const int layer_count_;
  const std::span<const std::string> layer_names_;
  std::vector<int> slot_layers_;                 // whose input a slot holds
  std::vector<std::optional<gpu::Event>> left_;  // by slot: after this it may be written
  std::vector<std::optional<gpu::Event>> away_;  // by layer: its input is in the host tier, or on disk
  std::optional<Arrival> arrival_;               // of the layer whose backward is next
  SlotRing staging_;
  int next_staging_ = 0;
  StateFile* file_;
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<gpu::Stream> lane_;  // last: its thread uses the rest
};

}  // namespace sluice
