#pragma once

#include <condition_variable>
#include <deque>
#include <thread>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "io/io_queue.h"
#include "io/transfer.h"

namespace sluice {

// pread and pwrite on a few threads of its own: works everywhere. Registers nothing.
class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(const IoQueueOptions& options = {});
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;
  ~ThreadQueue() override;

  std::string_view name() const override { return "threads"; }
  int capacity() const override { return capacity_; }
  int in_flight() const override { return in_flight_; }
  void start(std::span<const IoRequest> requests) override EXCLUDES(mutex_);
  std::span<const IoCompletion> wait(int least) override EXCLUDES(mutex_);

 private:
  void work() EXCLUDES(mutex_);

  const int capacity_;
  SingleUser user_;
  int in_flight_ = 0;               // the user's, as is the next
  std::vector<IoCompletion> seen_;  // what wait() handed out

  Mutex mutex_;
  std::condition_variable_any work_came_, transfer_ended_;
  std::deque<Transfer> waiting_ GUARDED_BY(mutex_);
  std::vector<IoCompletion> ended_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
