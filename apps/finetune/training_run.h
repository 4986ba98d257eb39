#pragma once

#include <chrono>
#include <optional>

#include "apps/common/interrupt.h"
#include "apps/finetune/checkpoint.h"
#include "apps/finetune/events.h"
#include "apps/finetune/io_guard.h"
#include "apps/finetune/learning_rate.h"
#include "apps/finetune/progress.h"
#include "apps/finetune/run_record.h"
#include "apps/finetune/train_events.h"
#include "apps/finetune/train_setup.h"
#include "apps/finetune/write_budget.h"
#include "engine/base/error.h"

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
    IoGuard& guard;
  };
  // `settings` are run_settings(). With `resumed` the trainer has that state already.
  TrainingRun(const Parts& parts, nlohmann::ordered_json settings, const std::optional<RunProgress>& resumed);
  ~TrainingRun() { parts_.guard.set_log(nullptr); }
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  // To the end, until a signal, or until --ssd_write_limit allows no further step: the exit code. Throws what
  // went wrong, after writing it down and saving what steps have been done. A state that could not be saved
  // on the way is told and ends nothing; the last one is thrown, after the result has been written.
  int run();

 private:
  std::shared_ptr<EventLog> open_events(const std::optional<RunProgress>& resumed) const;
  int stop_signal() const;
  void train();
  void step();
  void refuse_bad_loss(const StepFacts& facts) const;
  void refuse_more_skips() const;
  void count(const StepFacts& facts);
  PeakBytes peak() const;
  DiskUse planned_use() const;
  uint64_t written_bytes() const;
  bool may_go_on() const;
  bool saves_at_end() const;
  void save_before_stop();
  void tell_saved_state(const std::string& how) const;
  int stop_at_write_limit();
  double seconds() const;
  void begin_save();
  void settle_save();
  void tell_failed_save(int64_t step, const std::exception& error);
  void save_now();
  int stop();
  int finish();
  void refuse_unsaved_end() const;
  void tell_result() const;
  bool can_save_after(const std::exception& error) const;
  void fail(const std::exception& error);

  const Parts parts_;
  const nlohmann::ordered_json settings_;
  const LearningRate schedule_;
  RunProgress progress_;
  const int64_t first_step_;  // that is done already
  std::optional<PendingSave> pending_save_;
  int64_t pending_step_ = 0;
  int64_t saved_step_ = 0;
  int64_t failed_step_ = 0;          // whose state could not be saved, the last such
  std::optional<Error> save_error_;  // of it
  const std::shared_ptr<EventLog> events_;
  Progress screen_;
  const uint64_t written_before_;  // of earlier parts of the run, by record or diary
  const uint64_t planned_save_bytes_;
  WriteBudget budget_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const double seconds_before_;  // of earlier parts of the run
};

}  // namespace sluice::finetune
