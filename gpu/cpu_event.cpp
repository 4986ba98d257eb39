#include "gpu/cpu_event.h"

#include <optional>
#include <utility>

namespace sluice::gpu {

CpuEvent::CpuEvent(std::shared_ptr<StreamObserver> observer, std::shared_ptr<StreamGate> gate, Order order)
    : observer_(std::move(observer)), gate_(std::move(gate)), order_(std::move(order)) {}

bool CpuEvent::done() const {
  const bool is_done = done_.load(std::memory_order_acquire);
  if (is_done && observer_) observer_->on_host_wait(order_);
  return is_done;
}

void CpuEvent::wait() {
  const std::exception_ptr error = await();
  if (observer_) observer_->on_host_wait(order_);
  if (error) std::rethrow_exception(error);
}

void CpuEvent::complete(std::exception_ptr error) {
  MutexLock lock(mutex_);
  SLUICE_CHECK(!done_.load(std::memory_order_relaxed));
  error_ = std::move(error);
  done_.store(true, std::memory_order_release);
  if (gate_) gate_->on_event_done(this);
  reached_.notify_all();  // under the lock: a waiter may drop the last reference as soon as it gets away
}

std::exception_ptr CpuEvent::await() {
  if (!done_.load(std::memory_order_acquire)) {
    std::optional<TurnRelease> release;  // destroyed after the lock, as taking the turn again may block
    MutexLock lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      release.emplace(this, gate_.get());
      while (!done_.load(std::memory_order_relaxed)) reached_.wait(lock);
    }
  }
  MutexLock lock(mutex_);
  return error_;
}

bool CpuEvent::done_without_error() const {
  MutexLock lock(mutex_);
  return done_.load(std::memory_order_relaxed) && !error_;
}

StreamTurn& this_thread_turn() {
  thread_local StreamTurn turn;
  return turn;
}

TurnRelease::TurnRelease(const EventState* event, const StreamGate* event_gate) {
  const StreamTurn& turn = this_thread_turn();
  if (turn.gate == nullptr) return;
  if (turn.in_task) turn.gate->leave(turn.stream);
  turn.gate->on_blocked(turn.stream, event_gate == turn.gate ? event : nullptr);
}

TurnRelease::~TurnRelease() {
  const StreamTurn& turn = this_thread_turn();
  if (turn.gate == nullptr) return;
  turn.gate->on_unblocked(turn.stream);
  if (turn.in_task) turn.gate->enter(turn.stream, turn.task_index);
}

}  // namespace sluice::gpu
