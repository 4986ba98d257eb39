#include "apps/nvme_bench/rate_series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace sluice::nvme_bench {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(RateSeries, CountsByIntervalAndLeavesTheLastOut) {
  RateSeries series;
  EXPECT_TRUE(series.rates().empty());
  series.add(0.01, 100);
  series.add(0.04, 50);
  series.add(0.12, 30);
  series.add(0.151, 7);
  EXPECT_THAT(series.rates(), ElementsAre(DoubleEq(150 / 0.05), DoubleEq(0), DoubleEq(30 / 0.05)));
}

TEST(RateSeries, MergesIntervalsAndLosesNothing) {
  RateSeries series;
  constexpr int kCount = 10000;
  for (int i = 0; i < kCount; ++i) series.add(i * 0.1, 10);  // 1000 s
  series.add(1e4, 0);
  const std::vector<double> rates = series.rates();
  EXPECT_LE(rates.size(), RateSeries::kMostIntervals);
  EXPECT_GT(rates.size(), RateSeries::kMostIntervals / 3);
  EXPECT_NEAR(std::accumulate(rates.begin(), rates.end(), 0.0) * series.interval_seconds(), 10.0 * kCount,
              1e-6);
}

std::vector<double> noisy(std::vector<std::pair<size_t, double>> levels, double noise, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(1, noise);
  std::vector<double> rates;
  for (const auto& [count, level] : levels)
    for (size_t i = 0; i < count; ++i) rates.push_back(level * std::max(0.0, normal(random)));
  return rates;
}

TEST(SteadyRate, FindsWhereACacheRanOut) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const SteadyRate found = find_steady_rate(noisy({{60, 4e9}, {140, 1.5e9}}, 0.1, seed));
    ASSERT_TRUE(found.fell) << "seed " << seed;
    EXPECT_NEAR(static_cast<double>(found.fall), 60, 1) << "seed " << seed;
    EXPECT_NEAR(found.before, 4e9, 0.2e9);
    EXPECT_NEAR(found.after, 1.5e9, 0.1e9);
    EXPECT_NEAR(found.steady, 1.5e9, 0.1e9);
  }
}

TEST(SteadyRate, OfASecondFallIsTheLower) {
  const SteadyRate found = find_steady_rate(noisy({{40, 6e9}, {20, 1.6e9}, {100, 0.8e9}}, 0.02, 1));
  EXPECT_TRUE(found.fell);
  EXPECT_EQ(found.fall, 40u);
  EXPECT_NEAR(found.steady, 0.8e9, 0.05e9);
}

TEST(SteadyRate, SeesNoFallWhereThereIsNone) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const SteadyRate found = find_steady_rate(noisy({{100, 2e9}}, 0.4, seed));
    EXPECT_FALSE(found.fell) << "seed " << seed;
    // Five standard errors of a median of 50: 1.2533 * sigma / sqrt(50) each.
    EXPECT_NEAR(found.steady, 2e9, 0.71e9);
  }
  EXPECT_FALSE(find_steady_rate(noisy({{50, 1e9}, {50, 3e9}}, 0.1, 1)).fell);  // rose
  std::vector<double> pauses(100, 3e9);  // a drive that stops now and then, more at the end
  for (size_t i = 10; i < 100; i += i < 50 ? 10 : 4) pauses[i] = 0;
  EXPECT_FALSE(find_steady_rate(pauses).fell);
}

TEST(SteadyRate, SaysNothingOfAFewIntervals) {
  EXPECT_EQ(find_steady_rate({}).steady, 0);
  EXPECT_FALSE(find_steady_rate(std::vector<double>{4, 4, 4, 1, 1, 1, 1}).fell);
  EXPECT_TRUE(find_steady_rate(std::vector<double>{4, 4, 4, 1, 1, 1, 1, 1}).fell);
  EXPECT_EQ(find_steady_rate(std::vector<double>{5}).steady, 5);
}

}  // namespace
}  // namespace sluice::nvme_bench
