#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "apps/finetune/events.h"
#include "engine/base/thread_annotations.h"
#include "engine/base/trace.h"
#include "io/io_watchdog.h"

namespace sluice::finetune {

// Watches the transfers of a run for --io_timeout. One that does not return is told on standard error and in
// the run's diary (event `io_late`, and `io_returned` if it comes back after all); after IoWatchdog::kGiveUp
// times as long the process ends with the code of ErrorKind::runtime, at once: no destructor runs, as some
// would wait for the transfer and others free the memory that it may still write to. What is saved stays
// whole, as after kill -9. Outlives every queue that it has seen.
class IoGuard {
 public:
  // A timeout of 0: no watch. The clock is for tests.
  explicit IoGuard(double timeout_seconds, IoWatchdog::Now now = {});
  IoGuard(const IoGuard&) = delete;
  IoGuard& operator=(const IoGuard&) = delete;

  // Traced, too; before the first queue. May be null.
  void trace_into(Trace* trace) { trace_ = trace; }
  IoObservers observers();

  // Where transfers are told from here on; null: nowhere.
  void set_log(std::shared_ptr<EventLog> log) EXCLUDES(mutex_);
  // Done before the process ends, if it takes no longer than kLastWordsSeconds: it may touch the very drive
  // that hangs.
  void set_last_words(std::function<void()> last_words) EXCLUDES(mutex_);
  static constexpr double kLastWordsSeconds = 5;

 private:
  void tell(const char* event, const LateTransfer& transfer);
  [[noreturn]] void give_up(const LateTransfer& transfer);

  Trace* trace_ = nullptr;
  Mutex mutex_;
  std::shared_ptr<EventLog> log_ GUARDED_BY(mutex_);
  std::function<void()> last_words_ GUARDED_BY(mutex_);
  std::optional<IoWatchdog> watchdog_;
  std::optional<IoWatchdogThread> thread_;  // last: it uses the rest
};

}  // namespace sluice::finetune
