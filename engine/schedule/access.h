#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/ids.h"

// What a walk over a model touches, in order: the planner's input and the prefetcher's script.
namespace sluice {

enum class Phase { forward, turnaround, backward };

constexpr std::string_view name(Phase phase) {
  return phase == Phase::forward ? "forward" : phase == Phase::turnaround ? "turnaround" : "backward";
}

// Which layouts of its matmul weights a lease offers (gpu::WeightLayout).
struct LayoutSet {
  bool forward = false;
  bool backward = false;
  constexpr bool operator==(const LayoutSet&) const = default;
  constexpr LayoutSet operator|(LayoutSet other) const {
    return {forward || other.forward, backward || other.backward};
  }
};

// The micro-batches that pass while the access's lease is held.
struct MicroBatchRange {
  int begin = 0;
  int end = 0;
};

// One lease of a block. A layer-major training step is one generator of a list of these; eval, generation and
// an outside trainer are others.
struct Access {
  BlockId block;
  Phase phase = Phase::forward;
  LayoutSet layouts;
  MicroBatchRange micro_batches;
  // The tape layer whose activations this access makes (forward) or uses (backward); -1: none. Where the plan
  // recomputes that layer, a backward access is given the forward layout too.
  int tape_layer = -1;
};

}  // namespace sluice
