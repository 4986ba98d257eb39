#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "gpu/stream_hooks.h"

namespace sluice::gpu {

// A pseudo-random number that is a function of its arguments alone, on every machine.
uint64_t schedule_draw(uint64_t seed, std::string_view stream_name, int64_t task_index);

// Lets one task run at a time. Which one is next: of the streams whose next task could run, the one with the
// lowest draw. A draw waits until no stream is on the way anymore, so the order is a function of the seed and
// of what has been submitted: equal in every run when all of it is submitted while paused. Else how fast the
// submitter is has a say, but never a stream's thread. A task that blocks in an event or a full queue of a
// CpuStream lets the others go on meanwhile; one that blocks on another task by any other means would wait
// for ever. Thread-safe.
class Stepper final : public StreamGate {
 public:
  explicit Stepper(uint64_t seed) : seed_(seed) {}

  // While paused no task starts. Streams must not be destroyed, nor waited for, meanwhile.
  void pause() EXCLUDES(mutex_);
  void resume() EXCLUDES(mutex_);

  int add_stream(const std::string& name) override EXCLUDES(mutex_);
  void remove_stream(int stream) override EXCLUDES(mutex_);
  void on_submit(int stream) override EXCLUDES(mutex_);
  void on_idle(int stream) override EXCLUDES(mutex_);
  void on_blocked(int stream, const EventState* event) override EXCLUDES(mutex_);
  void on_unblocked(int stream) override EXCLUDES(mutex_);
  void on_event_done(const EventState* event) override EXCLUDES(mutex_);
  void enter(int stream, int64_t task_index) override EXCLUDES(mutex_);
  void leave(int stream) override EXCLUDES(mutex_);

 private:
  enum class State { idle, moving, blocked, at_gate, running };
  struct Lane {
    std::string name;
    State state = State::idle;
    const EventState* awaited = nullptr;
    int64_t task_index = 0;
  };

  Lane& lane(int stream) REQUIRES(mutex_) { return lanes_[static_cast<size_t>(stream)]; }
  void set_state(Lane& lane, State state) REQUIRES(mutex_);
  // Starts a task if it is time for one.
  void draw() REQUIRES(mutex_);

  const uint64_t seed_;
  Mutex mutex_;
  std::condition_variable_any started_;
  std::vector<Lane> lanes_ GUARDED_BY(mutex_);
  int busy_count_ GUARDED_BY(mutex_) = 0;  // lanes moving or running
  bool paused_ GUARDED_BY(mutex_) = false;
};

// Holds each task back for 0 to 300 us, drawn by the seed: brings orders about that an idle machine would
// never show. Then passes it to the inner gate, if there is one.
std::shared_ptr<StreamGate> make_delays(uint64_t seed, std::shared_ptr<StreamGate> inner);

}  // namespace sluice::gpu
