#pragma once

#include <cstdint>
#include <functional>

namespace sluice {

// The process's one pool of threads, injected wherever loops are split. Thread-safe: several streams call it
// at once.
class Executor {
 public:
  // `task` runs over [0, task_count). `worker` is in [0, thread_count()) and no two tasks that run at the
  // same time, of this or of another call, have the same one: it may index scratch memory, and must not enter
  // results.
  using Body = std::function<void(int64_t task, int worker)>;

  virtual ~Executor() = default;
  virtual int thread_count() const = 0;
  // Runs all tasks and returns when the last is done; the caller takes part. Tasks must not wait for one
  // another and must not call run again. The first exception is rethrown when all tasks have ended or been
  // dropped.
  virtual void run(int64_t task_count, const Body& body) = 0;
};

// Runs everything on the calling thread, in order.
class SerialExecutor final : public Executor {
 public:
  int thread_count() const override { return 1; }
  void run(int64_t task_count, const Body& body) override {
    for (int64_t task = 0; task < task_count; ++task) body(task, 0);
  }
};

// Calls body(begin, end, worker) over [0, size) in fixed pieces of `grain`: the pieces, and so the bits of
// anything summed within one, do not depend on the number of threads.
template <class RangeBody>
void run_ranges(Executor& executor, int64_t size, int64_t grain, const RangeBody& body) {
  const int64_t task_count = (size + grain - 1) / grain;
  executor.run(task_count, [&](int64_t task, int worker) {
    const int64_t begin = task * grain;
    body(begin, begin + grain < size ? begin + grain : size, worker);
  });
}

}  // namespace sluice
