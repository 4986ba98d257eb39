#include "gpu/host/schedule.h"

#include <chrono>
#include <limits>
#include <thread>
#include <utility>

namespace sluice::gpu {
namespace {

constexpr uint64_t kDelayRangeNs = 300'000;

// The finalizer of splitmix64 (Steele, Lea & Flood 2014).
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

class Delays final : public StreamGate {
 public:
  Delays(uint64_t seed, std::shared_ptr<StreamGate> inner) : seed_(seed), inner_(std::move(inner)) {}

  int add_stream(const std::string& name) override {
    const int stream = inner_ ? inner_->add_stream(name) : next_stream();
    MutexLock lock(mutex_);
    if (names_.size() <= static_cast<size_t>(stream)) names_.resize(static_cast<size_t>(stream) + 1);
    names_[static_cast<size_t>(stream)] = name;
    return stream;
  }
  void remove_stream(int stream) override {
    if (inner_) inner_->remove_stream(stream);
  }
  void on_submit(int stream) override {
    if (inner_) inner_->on_submit(stream);
  }
  void on_idle(int stream) override {
    if (inner_) inner_->on_idle(stream);
  }
  void on_blocked(int stream, const EventState* event) override {
    if (inner_) inner_->on_blocked(stream, event);
  }
  void on_unblocked(int stream) override {
    if (inner_) inner_->on_unblocked(stream);
  }
  void on_event_done(const EventState* event) override {
    if (inner_) inner_->on_event_done(event);
  }
  void enter(int stream, int64_t task_index) override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns(stream, task_index)));
    if (inner_) inner_->enter(stream, task_index);
  }
  void leave(int stream) override {
    if (inner_) inner_->leave(stream);
  }

 private:
  int next_stream() {
    MutexLock lock(mutex_);
    return static_cast<int>(names_.size());
  }
  uint64_t delay_ns(int stream, int64_t task_index) {
    MutexLock lock(mutex_);
    return schedule_draw(seed_, names_[static_cast<size_t>(stream)], task_index) % kDelayRangeNs;
  }

  const uint64_t seed_;
  const std::shared_ptr<StreamGate> inner_;
  Mutex mutex_;
  std::vector<std::string> names_ GUARDED_BY(mutex_);
};

}  // namespace

uint64_t schedule_draw(uint64_t seed, std::string_view stream_name, int64_t task_index) {
  uint64_t hash = mix(seed);
  for (const char letter : stream_name) hash = mix(hash ^ static_cast<unsigned char>(letter));
  return mix(hash ^ static_cast<uint64_t>(task_index));
}

void Stepper::pause() {
  MutexLock lock(mutex_);
  paused_ = true;
}

void Stepper::resume() {
  MutexLock lock(mutex_);
  paused_ = false;
  draw();
}

int Stepper::add_stream(const std::string& name) {
  MutexLock lock(mutex_);
  lanes_.push_back({.name = name});
  return static_cast<int>(lanes_.size()) - 1;
}

void Stepper::remove_stream(int stream) {
  MutexLock lock(mutex_);
  SLUICE_CHECK(lane(stream).state == State::idle);
}

void Stepper::on_submit(int stream) {
  MutexLock lock(mutex_);
  if (lane(stream).state == State::idle) set_state(lane(stream), State::moving);
}

void Stepper::on_idle(int stream) {
  MutexLock lock(mutex_);
  set_state(lane(stream), State::idle);
  draw();
}

void Stepper::on_blocked(int stream, const EventState* event) {
  MutexLock lock(mutex_);
  lane(stream).awaited = event;
  set_state(lane(stream), State::blocked);
  draw();
}

void Stepper::on_unblocked(int stream) {
  MutexLock lock(mutex_);
  if (lane(stream).state == State::blocked) set_state(lane(stream), State::moving);
}

void Stepper::on_event_done(const EventState* event) {
  MutexLock lock(mutex_);
  for (Lane& lane : lanes_) {
    if (lane.state == State::blocked && lane.awaited == event) set_state(lane, State::moving);
  }
}

void Stepper::enter(int stream, int64_t task_index) {
  MutexLock lock(mutex_);
  lane(stream).task_index = task_index;
  set_state(lane(stream), State::at_gate);
  draw();
  while (lane(stream).state != State::running) started_.wait(lock);
}

void Stepper::leave(int stream) {
  MutexLock lock(mutex_);
  set_state(lane(stream), State::moving);
}

void Stepper::set_state(Lane& lane, State state) {
  const auto is_busy = [](State value) { return value == State::moving || value == State::running; };
  busy_count_ += static_cast<int>(is_busy(state)) - static_cast<int>(is_busy(lane.state));
  lane.state = state;
}

void Stepper::draw() {
  if (paused_ || busy_count_ > 0) return;
  Lane* chosen = nullptr;
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (Lane& lane : lanes_) {
    if (lane.state != State::at_gate) continue;
    const uint64_t drawn = schedule_draw(seed_, lane.name, lane.task_index);
    if (chosen != nullptr && drawn >= lowest) continue;
    chosen = &lane;
    lowest = drawn;
  }
  if (chosen == nullptr) return;
  set_state(*chosen, State::running);
  started_.notify_all();
}

std::shared_ptr<StreamGate> make_delays(uint64_t seed, std::shared_ptr<StreamGate> inner) {
  return std::make_shared<Delays>(seed, std::move(inner));
}

}  // namespace sluice::gpu
