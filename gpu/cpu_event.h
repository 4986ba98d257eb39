#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>

#include "engine/base/thread_annotations.h"
#include "gpu/stream.h"
#include "gpu/stream_hooks.h"

namespace sluice::gpu {

// The event of a CpuStream: done once the stream's thread has come to it. Thread-safe; may outlive the
// stream.
class CpuEvent final : public EventState {
 public:
  // An event that is still to come.
  CpuEvent(std::shared_ptr<StreamObserver> observer, std::shared_ptr<StreamGate> gate, Order order);

  bool done() const override;
  void wait() override;

  // Once, by the stream.
  void complete(std::exception_ptr error) EXCLUDES(mutex_);
  // Blocks like wait(), returns the error instead, and is no host wait to the observer.
  std::exception_ptr await() EXCLUDES(mutex_);
  bool done_without_error() const EXCLUDES(mutex_);
  const Order& order() const { return order_; }
  const StreamGate* gate() const { return gate_.get(); }

 private:
  const std::shared_ptr<StreamObserver> observer_;
  const std::shared_ptr<StreamGate> gate_;
  const Order order_;
  mutable Mutex mutex_;
  std::condition_variable_any reached_;
  std::atomic<bool> done_ = false;  // written under the mutex
  std::exception_ptr error_ GUARDED_BY(mutex_);
};

// The stream whose thread this is, while it runs a task or a wait: so that a task that blocks lets the other
// streams of its gate go on. Null on every other thread.
struct StreamTurn {
  StreamGate* gate = nullptr;
  int stream = 0;
  int64_t task_index = 0;
  bool in_task = false;
};
StreamTurn& this_thread_turn();

// Gives the turn back while the calling thread blocks on `event` (or on something else: null), if it has one.
class TurnRelease {
 public:
  TurnRelease(const EventState* event, const StreamGate* event_gate);
  ~TurnRelease();
  TurnRelease(const TurnRelease&) = delete;
  TurnRelease& operator=(const TurnRelease&) = delete;
};

}  // namespace sluice::gpu
