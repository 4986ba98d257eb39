#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/support/trial_run.h"

namespace sluice::bench {

// A run whose plan is held against what it does.
struct PlanSetting {
  std::string name;
  TrialOptions trial;  // `folder`: set where something is to be on disk; use at() for the real one
  int step_count = 3;  // that are timed, of a run
  bool brief = false;  // one of those that show most in little time

  bool on_disk() const { return trial.folder.has_value(); }
  TrialOptions at(const std::filesystem::path& folder) const;
};

// Ten, of SmolLM2-135M's shape, half of them on modelled GPUs: other rows and micro-batches, formats of the
// state, recomputing, and what is on disk.
std::vector<PlanSetting> plan_settings();

}  // namespace sluice::bench
