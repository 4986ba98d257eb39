#include "engine/base/executor.h"

#include <atomic>
#include <gtest/gtest.h>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "apps/common/pool.h"

namespace sluice {
namespace {

TEST(Pool, HasTheThreadsThatItWasAskedFor) {
  EXPECT_EQ(make_pool(1)->thread_count(), 1);
  EXPECT_EQ(make_pool(3)->thread_count(), 3);
  EXPECT_EQ(make_pool()->thread_count(), usable_core_count());
  EXPECT_EQ(SerialExecutor().thread_count(), 1);
}

TEST(Pool, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3}) {
    const std::unique_ptr<Executor> pool = make_pool(threads);
    for (const int64_t task_count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(task_count));
      pool->run(task_count, [&](int64_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        ++runs[static_cast<size_t>(task)];
      });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

// More callers than workers, as when several streams split their loops at once.
TEST(Pool, NoTwoTasksHaveOneWorkerAtATime) {
  for (const int threads : {1, 2, 3}) {
    const std::unique_ptr<Executor> pool = make_pool(threads);
    std::vector<std::atomic<bool>> taken(static_cast<size_t>(threads));
    std::atomic<int> clashes = 0;
    std::atomic<int64_t> tasks = 0;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int round = 0; round < 50; ++round) {
          pool->run(20, [&](int64_t, int worker) {
            if (taken.at(static_cast<size_t>(worker)).exchange(true)) ++clashes;
            if (tasks++ % 16 == 0) std::this_thread::yield();
            taken[static_cast<size_t>(worker)] = false;
          });
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(clashes, 0) << threads << " threads";
    EXPECT_EQ(tasks, 4 * 50 * 20);
  }
}

TEST(Pool, AnExceptionComesBackWhenNoTaskRunsAnymore) {
  for (const int threads : {1, 3}) {
    const std::unique_ptr<Executor> pool = make_pool(threads);
    std::atomic<int> running = 0;
    std::atomic<int> started = 0;
    for (int round = 0; round < 20; ++round) {
      try {
        pool->run(100, [&](int64_t task, int) {
          ++running;
          ++started;
          std::this_thread::yield();
          --running;
          if (task == 10) throw std::runtime_error("task 10");
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "task 10");
      }
      EXPECT_EQ(running, 0);
    }
    EXPECT_LE(started, 20 * 100);
    std::atomic<int> after = 0;
    pool->run(10, [&](int64_t, int) { ++after; });
    EXPECT_EQ(after, 10) << "the pool goes on working";
  }
}

TEST(Pool, OneCallersExceptionIsNotAnothers) {
  const std::unique_ptr<Executor> pool = make_pool(2);
  std::atomic<int> thrown = 0;
  std::atomic<int64_t> done = 0;
  std::thread failing([&] {
    for (int round = 0; round < 50; ++round) {
      try {
        pool->run(8, [](int64_t task, int) {
          if (task == 3) throw std::runtime_error("mine");
        });
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
  });
  for (int round = 0; round < 50; ++round) pool->run(8, [&](int64_t, int) { ++done; });
  failing.join();
  EXPECT_EQ(thrown, 50);
  EXPECT_EQ(done, 50 * 8);
}

TEST(RunRanges, PiecesDoNotDependOnThreads) {
  using Piece = std::pair<int64_t, int64_t>;
  const auto pieces_of = [](Executor& executor, int64_t size, int64_t grain) {
    std::mutex mutex;
    std::set<Piece> pieces;
    run_ranges(executor, size, grain, [&](int64_t begin, int64_t end, int) {
      const std::lock_guard lock(mutex);
      pieces.emplace(begin, end);
    });
    return pieces;
  };
  SerialExecutor serial;
  EXPECT_EQ(pieces_of(serial, 0, 4), std::set<Piece>());
  EXPECT_EQ(pieces_of(serial, 3, 4), (std::set<Piece>{{0, 3}}));
  EXPECT_EQ(pieces_of(serial, 9, 4), (std::set<Piece>{{0, 4}, {4, 8}, {8, 9}}));
  const std::unique_ptr<Executor> pool = make_pool(3);
  for (const int64_t size : {0, 1, 4, 1023, 1024, 1025}) {
    EXPECT_EQ(pieces_of(*pool, size, 64), pieces_of(serial, size, 64)) << size;
  }
}

}  // namespace
}  // namespace sluice
