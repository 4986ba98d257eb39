#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>
#include <vector>

#include "apps/common/pool.h"
#include "engine/base/thread_annotations.h"

namespace sluice {
namespace {

// One loop handed to the pool. Lives on the caller's stack until every task has ended.
struct Loop {
  int64_t task_count = 0;
  const Executor::Body* body = nullptr;
  int64_t next = 0;
  int64_t finished = 0;
  std::exception_ptr error = nullptr;
};

// Workers only: the caller waits. So a worker's number is its own, whatever number of streams call at once.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int thread_count) {
    for (int worker = 0; worker < thread_count; ++worker)
      threads_.emplace_back([this, worker] { work(worker); });
  }
  ~ThreadPool() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int thread_count() const override { return static_cast<int>(threads_.size()); }

  void run(int64_t task_count, const Body& body) override EXCLUDES(mutex_) {
    if (task_count <= 0) return;
    Loop loop{.task_count = task_count, .body = &body};
    MutexLock lock(mutex_);
    loops_.push_back(&loop);
    wake_.notify_all();
    while (loop.finished < loop.task_count) done_.wait(lock);
    if (loop.error) std::rethrow_exception(loop.error);
  }

 private:
  void work(int worker) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (true) {
      while (loops_.empty() && !stopping_) wake_.wait(lock);
      if (loops_.empty()) return;
      Loop& loop = *loops_.front();
      const int64_t task = loop.next++;
      if (loop.next >= loop.task_count) loops_.pop_front();
      if (!loop.error) {
        lock.unlock();
        std::exception_ptr error;
        try {
          (*loop.body)(task, worker);
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        if (error && !loop.error) loop.error = error;
      }
      if (++loop.finished == loop.task_count) done_.notify_all();
    }
  }

  Mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable_any done_;
  std::deque<Loop*> loops_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_pool(int thread_count) {
  return std::make_unique<ThreadPool>(thread_count > 0 ? thread_count : usable_core_count());
}

}  // namespace sluice
