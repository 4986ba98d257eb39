#pragma once

#include <string>

#include "tests/support/cli_trial.h"

namespace sluice::test {

inline constexpr int kInterrupted = 143;

// All that a run computes: of each step, and at the end.
nlohmann::json run_results(const std::filesystem::path& output);

// `finetune train` on five rows, two a step, so that the last step of an epoch is shorter; interrupted, and
// gone on with.
class ResumeTrial : public CliTrial {
 protected:
  ResumeTrial();

  Arguments train_arguments(const std::filesystem::path& output, const Arguments& more = {}) const;
  Outcome train(const std::filesystem::path& output, const Arguments& more = {}) const;
  // `drives`: names of folders, with commas between.
  Arguments spill(const std::string& drives, const std::string& what = "all") const;
  // Of an undisturbed run of `steps`.
  nlohmann::json expected(const std::string& steps, const Arguments& more = {}) const;
  // Runs until after step 3 of six, as if a signal had come.
  void interrupt(const std::filesystem::path& output, const Arguments& more = {}) const;
  Outcome resume(const std::filesystem::path& output, const Arguments& more = {}) const;
  std::filesystem::path checkpoint() const { return output_ / "checkpoint"; }
};

}  // namespace sluice::test
