#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/view.h"

namespace sluice::gpu {

// What is behind an event: implemented by each kind of stream.
class EventState {
 public:
  virtual ~EventState() = default;
  virtual bool done() const = 0;
  // Blocks the calling thread until done; then throws the error that the work before the event met, if any.
  virtual void wait() = 0;
};

// A point in a stream's order. Made by Stream::record only, so an event that exists has been recorded. Copies
// share it. Thread-safe.
class Event {
 public:
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {
    SLUICE_CHECK(state_ != nullptr);
  }
  bool done() const { return state_->done(); }
  void wait() const { state_->wait(); }
  const std::shared_ptr<EventState>& state() const { return state_; }

 private:
  std::shared_ptr<EventState> state_;
};

enum class StreamKind {
  compute,   // ops
  copy_in,   // host to device
  copy_out,  // device to host
  cpu,       // host functions in order, on a thread of its own, on every device
};

// A host function, and the memory that it touches (for the hazard checker).
struct Task {
  std::string_view name;  // must outlive the task: a literal
  std::vector<MemoryAccess> accesses;
  std::function<void()> body;
  bool even_after_error = false;  // runs although an earlier task threw: gives back what is the thread's own
};

class Stream;

// How the ops of a device whose kernels are host functions get these into a stream of any kind: the device
// gives it to them (Stream::run is for cpu streams only).
using Enqueue = std::function<void(Stream&, Task)>;

// Work in order. One thread submits to a stream at a time; `name` and `kind` may be read by all. Destroying a
// stream waits for its work.
//
// Errors travel forwards: after a task failed, or after a wait for an event that carries an error, every
// later event of this stream carries the first such error. A cpu stream then skips its tasks (so only checked
// data is ever written to persistent state) but those that are to run even then; a device stream runs
// through.
class Stream {
 public:
  Stream(StreamKind kind, std::string name) : kind_(kind), name_(std::move(name)) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamKind kind() const { return kind_; }
  const std::string& name() const { return name_; }

  [[nodiscard]] virtual Event record() = 0;
  // Later work of this stream runs after `event`. Does not block the caller, except: a device stream of a
  // real GPU that is given a cpu stream's event blocks the caller until that is done (so a mover thread does
  // this, never the trainer).
  virtual void wait(const Event& event) = 0;
  // cpu streams only.
  virtual void run(Task task) = 0;

 private:
  StreamKind kind_;
  std::string name_;
};

}  // namespace sluice::gpu
