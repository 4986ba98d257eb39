#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/trace.h"
#include "engine/schedule/simulate.h"

namespace sluice {

// Steps that follow one another, and when the computation of the first is to begin (trace_now_ns).
struct StepGroup {
  int64_t first_step = 1;  // 1: the run's first, before which nothing was updated; else in the steady state
  int count = 1;
  int64_t begin_ns = 0;
};

// The simulated steps as lanes of a trace, for each group one simulation, named and ordered like the measured
// ones. Where a group begins before the prediction of the one before it has ended, what overlaps is left out.
std::vector<TraceLaneRecord> predicted_lanes(std::span<const SimTask> step, Processors processors,
                                             std::span<const StepGroup> groups);

}  // namespace sluice
