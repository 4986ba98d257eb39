#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

#include "apps/common/pool.h"
#include "engine/base/error.h"
#include "engine/base/thread_annotations.h"

namespace sluice {
namespace {

// One thread: callers take turns. Not an arena, because TBB gives one of a single slot a second one for work
// that another caller hands over.
class TurnTaking final : public Executor {
 public:
  int thread_count() const override { return 1; }
  void run(int64_t task_count, const Body& body) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (int64_t task = 0; task < task_count; ++task) body(task, 0);
  }

 private:
  Mutex mutex_;
};

// An arena of its own: at most thread_count slots, and a caller that finds them all taken hands its loop over
// and waits, so a slot index never belongs to two tasks at a time.
class TbbPool final : public Executor {
 public:
  explicit TbbPool(int thread_count)
      : limit_(oneapi::tbb::global_control::max_allowed_parallelism, static_cast<size_t>(thread_count)),
        arena_(thread_count, 1),
        thread_count_(thread_count) {}

  int thread_count() const override { return thread_count_; }

  void run(int64_t task_count, const Body& body) override {
    if (task_count <= 0) return;
    arena_.execute([&] {
      oneapi::tbb::this_task_arena::isolate([&] {
        oneapi::tbb::parallel_for(
            oneapi::tbb::blocked_range<int64_t>(0, task_count, 1),
            [&](const oneapi::tbb::blocked_range<int64_t>& range) {
              const int worker = oneapi::tbb::this_task_arena::current_thread_index();
              SLUICE_CHECK(worker >= 0 && worker < thread_count_);
              for (int64_t task = range.begin(); task < range.end(); ++task) body(task, worker);
            },
            oneapi::tbb::simple_partitioner());
      });
    });
  }

 private:
  oneapi::tbb::global_control limit_;  // else no more threads than cores, with a warning
  oneapi::tbb::task_arena arena_;
  int thread_count_;
};

}  // namespace

std::unique_ptr<Executor> make_pool(int thread_count) {
  if (thread_count <= 0) thread_count = usable_core_count();
  if (thread_count == 1) return std::make_unique<TurnTaking>();
  return std::make_unique<TbbPool>(thread_count);
}

}  // namespace sluice
