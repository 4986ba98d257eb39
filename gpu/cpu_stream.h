#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "engine/base/thread_annotations.h"
#include "engine/base/trace.h"
#include "gpu/cpu_event.h"
#include "gpu/stream.h"
#include "gpu/stream_hooks.h"

namespace sluice::gpu {

struct CpuStreamOptions {
  size_t queue_capacity = 4096;  // tasks, waits and records; a submitter of more blocks until there is room
  std::shared_ptr<StreamObserver> observer;  // may be null
  std::shared_ptr<StreamGate> gate;          // may be null
  Trace* trace = nullptr;                    // may be null; outlives the stream
};

// A stream that is a thread of this process: every stream of the host device, and the cpu streams of all
// devices. The thread bears the stream's name (its first 15 characters, all that Linux keeps). The destructor
// runs what was submitted, then joins it.
//
// A task that throws is this stream's error; see Stream for what follows from it. Waits for events of any
// kind block the stream's thread, never the submitter.
class CpuStream final : public Stream {
 public:
  CpuStream(StreamKind kind, std::string name, CpuStreamOptions options = {});
  ~CpuStream() override;

  Event record() override EXCLUDES(mutex_);
  void wait(const Event& event) override EXCLUDES(mutex_);
  void run(Task task) override;
  // `run` for streams of every kind: the device's own way in.
  void enqueue(Task task) EXCLUDES(mutex_);

 private:
  struct QueuedTask {
    Task task;
    Order order;
    int64_t index = 0;
    WorkLabel label = {};
  };
  using Item = std::variant<QueuedTask, Event, std::shared_ptr<CpuEvent>>;  // run, wait, complete

  void push(Item item) EXCLUDES(mutex_);
  std::optional<Item> next() EXCLUDES(mutex_);
  void work();
  void execute(QueuedTask& queued);
  void execute(const Event& awaited);
  void execute(const std::shared_ptr<CpuEvent>& recorded);
  void keep_error(std::exception_ptr error) EXCLUDES(mutex_);
  std::exception_ptr error() EXCLUDES(mutex_);

  const CpuStreamOptions options_;
  const int observed_id_;
  const int gated_id_;
  TraceLane* const traced_;           // may be null
  int64_t submitted_task_count_ = 0;  // the submitter's

  Mutex mutex_;
  std::condition_variable_any wake_;   // the thread: there is work, or the end
  std::condition_variable_any space_;  // the submitter: there is room
  std::deque<Item> items_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false;  // the thread has an item in hand
  bool closing_ GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GUARDED_BY(mutex_);  // the first
  std::thread thread_;                           // last: it uses all of the above
};

}  // namespace sluice::gpu
