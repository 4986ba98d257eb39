#include "engine/memory/tier.h"

#include <atomic>
#include <gtest/gtest.h>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"

namespace sluice {
namespace {

TEST(FormatBytes, ByHand) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536 << 10), "1.50 MiB");
  EXPECT_EQ(format_bytes(size_t{12} << 20), "12.0 MiB");
  EXPECT_EQ(format_bytes(size_t{3} << 30), "3.00 GiB");
  EXPECT_EQ(format_bytes(size_t{5000} << 40), "5000.0 TiB");
}

TEST(Tier, Names) {
  EXPECT_EQ(name(Tier::device), "device");
  EXPECT_EQ(name(Tier::host), "host");
  EXPECT_EQ(name(Tier::disk), "disk");
}

TEST(TierBudget, CountsWithoutALimit) {
  TierBudget budget(Tier::host);
  EXPECT_EQ(budget.tier(), Tier::host);
  EXPECT_FALSE(budget.limit_bytes());
  {
    const Reservation first = budget.reserve(100, "a");
    const Reservation second = budget.reserve(size_t{1} << 50, "b");
    EXPECT_EQ(first.size_bytes(), 100u);
    EXPECT_EQ(budget.used_bytes(), 100 + (size_t{1} << 50));
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_EQ(budget.peak_bytes(), 100 + (size_t{1} << 50));
}

TEST(TierBudget, LimitIsObeyedToTheByte) {
  TierBudget budget(Tier::device, 10 << 10);
  const Reservation first = budget.reserve(6 << 10, "weights");
  test::expect_error(ErrorKind::resource, {"device", "gradients", "4.00 KiB", "6.00 KiB in use", "10.0 KiB"},
                     [&] { (void)budget.reserve((4 << 10) + 1, "gradients"); });
  EXPECT_EQ(budget.used_bytes(), size_t{6} << 10) << "a refusal takes nothing";
  EXPECT_EQ(budget.peak_bytes(), size_t{6} << 10);
  EXPECT_THROW((void)budget.reserve(SIZE_MAX, "all"), Error);
  const Reservation rest = budget.reserve(4 << 10, "gradients");
  const Reservation nothing = budget.reserve(0, "nothing");
  EXPECT_THROW((void)budget.reserve(1, "one byte"), Error);
}

TEST(TierBudget, NothingFitsALimitOfZero) {
  TierBudget budget(Tier::disk, 0);
  EXPECT_NO_THROW((void)budget.reserve(0, "nothing"));
  EXPECT_THROW((void)budget.reserve(1, "a byte"), Error);
}

TEST(Reservation, MovesAndGivesBackOnce) {
  TierBudget budget(Tier::host, 100);
  Reservation a = budget.reserve(30, "a");
  Reservation b = std::move(a);
  EXPECT_EQ(budget.used_bytes(), 30u);
  EXPECT_EQ(b.size_bytes(), 30u);
  EXPECT_EQ(a.size_bytes(), 0u);  // NOLINT(bugprone-use-after-move): a moved-from one is empty
  b = budget.reserve(50, "b");    // the 30 are given back
  EXPECT_EQ(budget.used_bytes(), 50u);
  EXPECT_EQ(budget.peak_bytes(), 80u);
  Reservation& same = b;
  b = std::move(same);
  EXPECT_EQ(budget.used_bytes(), 50u);
  b = Reservation();
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST(TierBudget, ThreadsNeverExceedTheLimit) {
  constexpr size_t kLimit = 1000;
  TierBudget budget(Tier::host, kLimit);
  std::atomic<size_t> held = 0;
  std::atomic<int> exceeded = 0, refused = 0;
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::minstd_rand random(thread + 1);
      std::vector<Reservation> mine;
      for (int i = 0; i < 2000; ++i) {
        const size_t size = random() % 400;
        try {
          Reservation reservation = budget.reserve(size, "a piece");
          if (held.fetch_add(size) + size > kLimit) ++exceeded;
          mine.push_back(std::move(reservation));
        } catch (const Error&) {
          ++refused;
        }
        if (mine.size() > 4) {
          held -= mine.front().size_bytes();
          mine.erase(mine.begin());
        }
      }
      for (const Reservation& reservation : mine) held -= reservation.size_bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(exceeded, 0);
  EXPECT_GT(refused, 0) << "the limit was never touched";
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_LE(budget.peak_bytes(), kLimit);
}

}  // namespace
}  // namespace sluice
