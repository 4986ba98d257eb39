#pragma once

#include <chrono>
#include <optional>

#include "apps/common/interrupt.h"
#include "apps/finetune/checkpoint.h"
#include "apps/finetune/events.h"
#include "apps/finetune/learning_rate.h"
#include "apps/finetune/progress.h"
#include "apps/finetune/run_record.h"
#include "apps/finetune/train_events.h"
#include "apps/finetune/train_setup.h"

namespace sluice::finetune {

// The steps of a run, their diary, their progress on the screen, saved states on the way, and the result at
// the end. Borrows everything; one thread.
class TrainingRun {
 public:
  struct Parts {
    const TrainOptions& options;
    const TrainSetup& setup;
    Trainer& trainer;
    Checkpoint& checkpoint;
    const PeakMemory& memory;
    const InterruptWatch& watch;
  };
  // `settings` are run_settings(). With `resumed` the trainer has that state already.
  TrainingRun(const Parts& parts, nlohmann::ordered_json settings, const std::optional<RunProgress>& resumed);

  // To the end, or until a signal: the exit code. Throws what went wrong, after writing it down.
  int run();

 private:
  EventLog open_events(const std::optional<RunProgress>& resumed) const;
  int stop_signal() const;
  void train();
  void step();
  void refuse_bad_loss(const StepFacts& facts) const;
  void count(const StepFacts& facts);
  PeakBytes peak() const;
  double seconds() const;
  gpu::Event save();
  void save_now();
  int stop();
  int finish();
  void tell_result() const;
  void fail(const char* message);

  const Parts parts_;
  const nlohmann::ordered_json settings_;
  const LearningRate schedule_;
  RunProgress progress_;
  int64_t saved_step_ = 0;
  EventLog events_;
  Progress screen_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const double seconds_before_;  // of earlier parts of the run
};

}  // namespace sluice::finetune
