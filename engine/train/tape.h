#pragma once

#include <cstddef>
#include <vector>

#include "engine/schedule/plan.h"

namespace sluice {

// Device memory of the activations of one walk, where the plan put them. Layer-major: the boundary (input) of
// every layer and micro-batch is kept; what backward needs besides is kept too or, where the plan says so,
// recomputed into memory that all recomputed layers share, just before it is used.
//
// All of it is used on one compute stream in the order of the walk, so no events are needed. Used by the
// trainer's thread.
class Tape {
 public:
  Tape(const Plan& plan, const PlanRequest& request, std::byte* device_memory);

  struct Range {
    std::byte* data = nullptr;
    size_t size_bytes = 0;
  };
  Range boundary(int layer, int micro_batch) const;
  // Where forward leaves what backward needs. For a recomputed layer forward's result is dropped: backward
  // calls forward again first (recomputes() is true), with the same range.
  Range saved(int layer, int micro_batch) const;
  bool recomputes(int layer) const { return plan_.recomputed.at(static_cast<size_t>(layer)); }

 private:
  Range range(std::byte* begin, size_t offset, size_t size_bytes, int micro_batch) const;

  const Plan& plan_;
  std::vector<TapeLayerNeeds> layers_;
  size_t alignment_bytes_;
  std::byte* boundaries_;
  std::byte* saved_;
  std::byte* recomputed_;
};

}  // namespace sluice
