#include "gpu/cpu_stream.h"

#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <memory>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

namespace sluice::gpu {
namespace {

Task task(std::function<void()> body) {
  return {"task", {}, std::move(body)};
}

// An event that is no CpuStream's: an IO completion, another device's.
class ForeignEvent final : public EventState {
 public:
  bool done() const override {
    return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  void wait() override { future_.get(); }
  std::promise<void> promise;

 private:
  std::shared_future<void> future_ = promise.get_future().share();
};

TEST(CpuStream, ThreadBearsTheName) {
  CpuStream stream(StreamKind::cpu, "a_name_longer_than_linux_keeps");
  std::string seen;
  stream.run(task([&seen] {
    char name[32] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    seen = name;
  }));
  stream.record().wait();
  EXPECT_EQ(seen, "a_name_longer_t");
  EXPECT_EQ(stream.name(), "a_name_longer_than_linux_keeps");
}

TEST(CpuStream, WaitsForForeignEventsInOrder) {
  const auto foreign = std::make_shared<ForeignEvent>();
  CpuStream stream(StreamKind::cpu, "cpu");
  std::atomic<int> before = 0, after = 0;
  stream.run(task([&] { ++before; }));
  const Event first = stream.record();
  stream.wait(Event(foreign));
  stream.run(task([&] { ++after; }));
  const Event last = stream.record();
  first.wait();
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 0);
  EXPECT_FALSE(last.done());
  foreign->promise.set_value();
  last.wait();
  EXPECT_EQ(after, 1);
}

TEST(CpuStream, ForeignErrorIsCarried) {
  const auto foreign = std::make_shared<ForeignEvent>();
  CpuStream stream(StreamKind::cpu, "cpu");
  std::atomic<bool> ran = false;
  stream.wait(Event(foreign));
  stream.run(task([&] { ran = true; }));
  const Event event = stream.record();
  foreign->promise.set_exception(std::make_exception_ptr(Error(ErrorKind::data, "block 3: EIO")));
  try {
    event.wait();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_STREQ(error.what(), "block 3: EIO");
  }
  EXPECT_FALSE(ran);
}

TEST(CpuStream, FailingTaskOfADeviceKindIsKeptAndTheRestRuns) {
  CpuStream stream(StreamKind::compute, "compute");
  std::atomic<bool> ran = false;
  stream.enqueue(task([] { throw Error(ErrorKind::runtime, "kernel"); }));
  stream.enqueue(task([&] { ran = true; }));
  EXPECT_THROW(stream.record().wait(), Error);
  EXPECT_TRUE(ran);
}

TEST(CpuStream, EventAfterAnIdleStreamIsDoneAtOnce) {
  CpuStream stream(StreamKind::cpu, "cpu");
  EXPECT_TRUE(stream.record().done());
  stream.run(task([] { throw Error(ErrorKind::runtime, "stays"); }));
  EXPECT_THROW(stream.record().wait(), Error);
  EXPECT_THROW(stream.record().wait(), Error);
}

TEST(CpuStream, FullQueueHoldsTheSubmitterBack) {
  CpuStreamOptions options;
  options.queue_capacity = 4;
  CpuStream stream(StreamKind::cpu, "cpu", std::move(options));
  std::atomic<bool> may_end = false;
  std::atomic<int> started = 0, submitted = 0;
  stream.run(task([&] {
    started = 1;
    started.notify_all();
    may_end.wait(false);
  }));
  started.wait(0);
  std::thread submitter([&] {
    for (int i = 0; i < 50; ++i) {
      stream.run(task([] {}));
      submitted = i + 1;
      submitted.notify_all();
    }
  });
  for (int seen = submitted; seen < 4; seen = submitted) submitted.wait(seen);
  // No further one can get in while the first task holds the thread, however long one looked.
  for (int i = 0; i < 100; ++i) {
    std::this_thread::yield();
    ASSERT_EQ(submitted, 4);
  }
  may_end = true;
  may_end.notify_all();
  submitter.join();
  EXPECT_EQ(submitted, 50);
}

TEST(CpuStream, TaskIsDestroyedBeforeItsEventIsDone) {
  CpuStream stream(StreamKind::cpu, "cpu");
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(i);
    const std::weak_ptr<int> watched = held;
    stream.run(task([held = std::move(held)] {}));
    stream.record().wait();
    ASSERT_TRUE(watched.expired());
  }
}

TEST(CpuStream, RecordsOfABusyStreamNeverGetLost) {
  CpuStream ping(StreamKind::cpu, "ping"), pong(StreamKind::cpu, "pong");
  int value = 0;
  for (int i = 0; i < 5000; ++i) {
    ping.run(task([&value] { ++value; }));
    pong.wait(ping.record());
    pong.run(task([&value] { ++value; }));
    ping.wait(pong.record());
  }
  ping.record().wait();
  EXPECT_EQ(value, 10'000);
}

TEST(CpuStream, ManyThreadsWaitForOneEvent) {
  CpuStream stream(StreamKind::cpu, "cpu");
  std::atomic<bool> may_end = false;
  int value = 0;
  stream.run(task([&] {
    may_end.wait(false);
    value = 7;
  }));
  const Event event = stream.record();
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&right, &value, event] {
      event.wait();
      right += value == 7;
    });
  }
  may_end = true;
  may_end.notify_all();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
}

TEST(CpuStream, ErrorsReachManyThreads) {
  CpuStream stream(StreamKind::cpu, "cpu");
  stream.run(task([] { throw Error(ErrorKind::runtime, "shared"); }));
  const Event event = stream.record();
  std::atomic<int> caught = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&caught, event] {
      try {
        event.wait();
      } catch (const Error& error) {
        caught += std::string(error.what()) == "shared";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(caught, 4);
}

}  // namespace
}  // namespace sluice::gpu
