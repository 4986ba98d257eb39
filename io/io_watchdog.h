#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "io/observed_queue.h"

namespace sluice {

// A transfer that has not returned for long, by its values: nothing here refers to its memory.
struct LateTransfer {
  IoRequest::Kind kind = IoRequest::Kind::read;
  std::string path;
  uint64_t offset = 0;
  size_t size_bytes = 0;
  std::string work;  // "write states of layer 3"; empty: unknown
  int64_t step = 0;
  double seconds = 0;  // since it began

  // "the write of 1048576 bytes of PATH at offset 4096 (write states of layer 3, step 7) has not returned for
  // 120 s"
  std::string text() const;
};

// Watches the transfers of many queues. One that takes longer than the timeout is told, once; one that takes
// kGiveUp times as long is given up: no request to the kernel takes a transfer back that is in flight
// (io_uring's LINK_TIMEOUT and cancellation reach only what waits), so its memory stays in use by it, and a
// process that has lost one can only end, without freeing anything. Nothing here frees or reuses memory: a
// queue hands no completion out before the transfer has ended, and its destructor waits for it. Thread-safe.
class IoWatchdog {
 public:
  static constexpr double kGiveUp = 4;

  // Called by whoever calls check(), one at a time, with no lock held that a queue needs. They must not call
  // back.
  struct Listener {
    std::function<void(const LateTransfer&)> late;
    // A late one came back after all: its seconds are those that it took.
    std::function<void(const LateTransfer&)> returned;
    // Not expected to return, where the program is not a test.
    std::function<void(const LateTransfer&)> given_up;
  };
  using Now = std::function<int64_t()>;  // nanoseconds, never going back

  // `timeout_seconds` > 0. Has no thread of its own: see IoWatchdogThread. The default clock is the steady
  // one.
  IoWatchdog(double timeout_seconds, Listener listener, Now now = {});
  IoWatchdog(const IoWatchdog&) = delete;
  IoWatchdog& operator=(const IoWatchdog&) = delete;

  // Of one queue of that capacity; the watchdog outlives it.
  std::unique_ptr<IoObserver> watch(int capacity) EXCLUDES(mutex_);
  // Looks at all that is in flight.
  void check() EXCLUDES(mutex_, check_mutex_);
  double timeout_seconds() const { return timeout_seconds_; }

 private:
  class Watched;
  double seconds_since(int64_t begin_ns) const;

  const double timeout_seconds_;
  const Listener listener_;
  const Now now_;
  Mutex check_mutex_;  // of those who check
  Mutex mutex_;
  std::vector<Watched*> queues_ GUARDED_BY(mutex_);
};

// Checks every eighth of the timeout, at least once a second, while it lives.
class IoWatchdogThread {
 public:
  explicit IoWatchdogThread(IoWatchdog& watchdog);
  ~IoWatchdogThread();
  IoWatchdogThread(const IoWatchdogThread&) = delete;
  IoWatchdogThread& operator=(const IoWatchdogThread&) = delete;

 private:
  void work();

  IoWatchdog& watchdog_;
  Mutex mutex_;
  std::condition_variable_any wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sluice
