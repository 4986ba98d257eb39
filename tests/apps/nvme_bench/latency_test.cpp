#include "apps/nvme_bench/latency.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace sluice::nvme_bench {
namespace {

constexpr double kBucket = 1.0 / 64;  // the width of one, of its value

TEST(Latencies, OfNothingAreZero) {
  const LatencyHistogram none;
  EXPECT_EQ(none.percentile_seconds(50), 0);
  EXPECT_EQ(none.largest_seconds(), 0);
  EXPECT_EQ(none.count(), 0u);
}

TEST(Latencies, HaveKnownPercentiles) {
  LatencyHistogram histogram;
  for (int ms = 1; ms <= 100; ++ms) histogram.add(ms * 1e-3);
  for (const int percent : {1, 50, 95, 99}) {
    EXPECT_GE(histogram.percentile_seconds(percent), percent * 1e-3 * (1 - 1e-12));
    EXPECT_LE(histogram.percentile_seconds(percent), percent * 1e-3 * (1 + kBucket));
  }
  EXPECT_DOUBLE_EQ(histogram.percentile_seconds(100), 0.1);
  EXPECT_DOUBLE_EQ(histogram.largest_seconds(), 0.1);
  EXPECT_EQ(histogram.count(), 100u);
}

TEST(Latencies, HaveADistribution) {
  EXPECT_TRUE(LatencyHistogram().distribution().empty());
  LatencyHistogram histogram;
  for (const double ns : {10.0, 10.0, 20.0, 60.0}) histogram.add(ns * 1e-9);
  const auto points = histogram.distribution();
  ASSERT_EQ(points.size(), 3u);
  EXPECT_DOUBLE_EQ(points[0].first, 10e-9);
  EXPECT_DOUBLE_EQ(points[0].second, 0.5);
  EXPECT_DOUBLE_EQ(points[1].second, 0.75);
  EXPECT_DOUBLE_EQ(points[2].first, 60e-9);
  EXPECT_DOUBLE_EQ(points[2].second, 1);
}

TEST(Latencies, BelowABucketAreExact) {
  LatencyHistogram histogram;
  for (const double ns : {0.0, 1.0, 63.0, 64.0, 127.0}) {
    histogram.add(ns * 1e-9);
    EXPECT_DOUBLE_EQ(histogram.percentile_seconds(100), ns * 1e-9);
  }
  EXPECT_DOUBLE_EQ(histogram.percentile_seconds(60), 63e-9);
  EXPECT_DOUBLE_EQ(histogram.percentile_seconds(80), 64e-9);
}

TEST(Latencies, NeverReadTooLow) {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> seconds(-7, 2);
  std::vector<double> all;
  LatencyHistogram histogram;
  for (int i = 0; i < 4001; ++i) {
    all.push_back(static_cast<double>(static_cast<int64_t>(seconds(random) * 1e9)) * 1e-9);
    histogram.add(all.back());
  }
  std::sort(all.begin(), all.end());
  for (const double percent : {0.1, 10.0, 50.0, 90.0, 99.0, 99.9}) {
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(all.size()))) - 1;
    EXPECT_GE(histogram.percentile_seconds(percent), all[rank] * (1 - 1e-9));
    EXPECT_LE(histogram.percentile_seconds(percent), all[rank] * (1 + kBucket) + 1e-9);
  }
}

TEST(Latencies, TakeAnything) {
  LatencyHistogram histogram;
  histogram.add(-1);
  histogram.add(1e30);
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_EQ(histogram.percentile_seconds(50), 0);
  EXPECT_DOUBLE_EQ(histogram.largest_seconds(), 1e9);
}

}  // namespace
}  // namespace sluice::nvme_bench
