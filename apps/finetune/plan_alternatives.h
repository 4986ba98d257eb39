#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/train_setup.h"
#include "engine/schedule/plan_refusal.h"

namespace sluice::finetune {

// What to change, one option at a time, so that a refused plan would go: "--device_memory 300MiB",
// "--max_seq_length 512". The nearest first: the limit raised to its least, for nothing else of the run
// changes with it.
std::vector<std::string> settings_that_would_go(const TrainSetup& setup, const PlanRefusal& refusal);

// The plan of a setup whose limits are raised, in place, to the least that goes: where raising one shows that
// another is too low, that one, too. None where that does not end.
struct RaisedPlan {
  Plan plan;
  std::string settings;  // "--device_memory 300MiB"
};
std::optional<RaisedPlan> raise_limits(gpu::Device& device, TrainSetup& setup, const PlanRefusal& refusal);

}  // namespace sluice::finetune
