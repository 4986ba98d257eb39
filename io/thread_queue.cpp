#include "io/thread_queue.h"

#include <algorithm>
#include <pthread.h>
#include <string>
#include <system_error>

#include "engine/base/error.h"

namespace sluice {

ThreadQueue::ThreadQueue(const IoQueueOptions& options) : capacity_(options.capacity) {
  SLUICE_CHECK(options.capacity > 0 && options.thread_count > 0);
  // More threads than transfers would never run.
  const int thread_count = std::min(options.thread_count, options.capacity);
  try {
    for (int i = 0; i < thread_count; ++i) {
      threads_.emplace_back([this, i] {
        pthread_setname_np(pthread_self(), ("io " + std::to_string(i)).c_str());
        work();
      });
    }
  } catch (const std::system_error& error) {
    // Fewer do as well, slower.
    if (threads_.empty()) {
      throw Error(ErrorKind::resource, std::string("cannot start a thread that reads and writes: ") +
                                           error.what() + ". Raise the limit of processes (ulimit -u).");
    }
  }
}

// The threads end once nothing waits.
ThreadQueue::~ThreadQueue() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadQueue::start(std::span<const IoRequest> requests) {
  user_.check();
  SLUICE_CHECK(requests.size() <= static_cast<size_t>(capacity_ - in_flight_));
  {
    MutexLock lock(mutex_);
    for (const IoRequest& request : requests) waiting_.emplace_back(request);
  }
  in_flight_ += static_cast<int>(requests.size());
  if (requests.size() == 1) {
    work_came_.notify_one();
  } else {
    work_came_.notify_all();
  }
}

std::span<const IoCompletion> ThreadQueue::wait(int least) {
  if (in_flight_ > 0) user_.check();
  SLUICE_CHECK(least >= 0 && least <= in_flight_);
  seen_.clear();
  {
    MutexLock lock(mutex_);
    while (ended_.size() < static_cast<size_t>(least)) transfer_ended_.wait(lock);
    seen_.swap(ended_);
  }
  in_flight_ -= static_cast<int>(seen_.size());
  return seen_;
}

void ThreadQueue::work() {
  MutexLock lock(mutex_);
  while (true) {
    while (waiting_.empty() && !stopping_) work_came_.wait(lock);
    if (waiting_.empty()) return;
    Transfer transfer = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    for (Transfer::Next next; (next = transfer.take(transfer_once(transfer))) != Transfer::Next::done;)
      if (next == Transfer::Next::after_pause) std::this_thread::sleep_for(transfer.pause());
    lock.lock();
    ended_.push_back(transfer.completion());
    transfer_ended_.notify_one();
  }
}

}  // namespace sluice
