#pragma once

#include <nlohmann/json.hpp>

#include "apps/finetune/train_setup.h"
#include "apps/finetune/weights.h"

// What a training run writes into its event log (events.h), and how its fields are called.
namespace sluice::finetune {

struct PeakBytes {
  size_t device = 0;
  size_t host = 0;     // of the plan
  size_t process = 0;  // RssAnon + RssShmem, measured
};

struct StepFacts {
  int64_t step = 0;  // from 1
  double epoch = 0;
  double learning_rate = 0;
  double seconds = 0;
  StepReport report;
  PeakBytes peak;
  uint64_t written_bytes = 0;  // to the drives, by the whole run until now; the update may still write
  double tokens_per_second() const { return static_cast<double>(report.token_count) / seconds; }
};

struct RunFacts {
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  double loss = 0;        // of the last step
  double train_loss = 0;  // mean over the steps
  int64_t tokens = 0;
  int64_t label_tokens = 0;
  double seconds = 0;
  uint64_t written_bytes =
      0;  // to the drives: states, gradients, activations, manifests, at the end the result
  PeakBytes peak;
  ExportReport exported;
  std::string state_hash;  // 16 hexadecimal digits
};

nlohmann::ordered_json options_json(const TrainOptions& options);
nlohmann::ordered_json start_event(const TrainOptions& options, const TrainSetup& setup, const Plan& plan);
// A run goes on after `step`; the diary had `dropped_steps` more.
nlohmann::ordered_json resume_event(const TrainOptions& options, const TrainSetup& setup, const Plan& plan,
                                    int64_t step, int64_t dropped_steps);
nlohmann::ordered_json step_event(const StepFacts& facts);
// Also what --json prints, less "event".
nlohmann::ordered_json end_event(const RunFacts& facts, const std::string& output);

}  // namespace sluice::finetune
