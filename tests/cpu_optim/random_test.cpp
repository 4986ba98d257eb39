#include "cpu_optim/random.h"

#include <array>
#include <cmath>
#include <gtest/gtest.h>

namespace sluice::cpu_optim {
namespace {

struct Moments {
  double mean = 0, square = 0;
};

constexpr int64_t kCount = 1 << 20;
constexpr double kVariance = 65536.0 * 65536.0 / 12;

// 5 standard errors: of the mean of uniform numbers, and of a correlation of independent ones.
const double kMeanBound = 5 * std::sqrt(kVariance / kCount);
const double kCorrelationBound = 5 / std::sqrt(static_cast<double>(kCount));

// The formats of bf16 and int8.
using Draw = Draws (*)(uint64_t random_key, uint64_t element);
class DrawsTest : public testing::TestWithParam<Draw> {};
INSTANTIATE_TEST_SUITE_P(Formats, DrawsTest, testing::Values(&draws, &record_draws));

template <class First, class Second>
double correlation(const First& first, const Second& second) {
  double sum = 0;
  for (int64_t i = 0; i < kCount; ++i) sum += (first(i) - 32767.5) * (second(i) - 32767.5);
  return sum / kCount / kVariance;
}

TEST_P(DrawsTest, AreUniformInEveryStream) {
  const uint64_t key = random_key_of(1, 1);
  std::array<std::array<int64_t, 256>, 3> high{}, low{};
  std::array<double, 3> sums{};
  for (uint64_t i = 0; i < static_cast<uint64_t>(kCount); ++i) {
    const Draws drawn = GetParam()(key, i);
    const uint32_t streams[] = {drawn.weight16(), drawn.first16(), drawn.second16()};
    for (size_t k = 0; k < 3; ++k) {
      sums[k] += streams[k] - 32767.5;
      ++high[k][streams[k] / 256];
      ++low[k][streams[k] % 256];
    }
  }
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(sums[k] / kCount, 0, kMeanBound);
    for (const auto& counts : {high[k], low[k]}) {
      double chi_square = 0;
      for (const int64_t count : counts)
        chi_square += std::pow(static_cast<double>(count) - kCount / 256.0, 2);
      chi_square /= kCount / 256.0;
      EXPECT_LE(chi_square, 255 + 6 * std::sqrt(2 * 255.0));  // more even than chance is welcome
    }
  }
}

TEST_P(DrawsTest, AreUncorrelated) {
  const uint64_t key = random_key_of(7, 100), next = random_key_of(7, 101), other = random_key_of(8, 100);
  const auto weight = [](uint64_t of, uint64_t shift) {
    return [=](int64_t i) {
      const Draws drawn = GetParam()(of, static_cast<uint64_t>(i) + shift);
      return drawn.weight16();
    };
  };
  const auto first = [=](int64_t i) {
    const Draws drawn = GetParam()(key, static_cast<uint64_t>(i));
    return drawn.first16();
  };
  const auto second = [=](int64_t i) {
    const Draws drawn = GetParam()(key, static_cast<uint64_t>(i));
    return drawn.second16();
  };
  EXPECT_NEAR(correlation(weight(key, 0), first), 0, kCorrelationBound);
  EXPECT_NEAR(correlation(weight(key, 0), second), 0, kCorrelationBound);
  EXPECT_NEAR(correlation(first, second), 0, kCorrelationBound);
  EXPECT_NEAR(correlation(weight(key, 0), weight(next, 0)), 0, kCorrelationBound);
  EXPECT_NEAR(correlation(weight(key, 0), weight(other, 0)), 0, kCorrelationBound);
  for (const uint64_t distance : {1, 2, 3, 16, 32, 128, 256, 4096, 65536}) {
    EXPECT_NEAR(correlation(weight(key, 0), weight(key, distance)), 0, kCorrelationBound) << distance;
    const auto first_at = [=](int64_t i) { return first(i + static_cast<int64_t>(distance)); };
    EXPECT_NEAR(correlation(first, first_at), 0, kCorrelationBound) << distance;
  }
}

}  // namespace
}  // namespace sluice::cpu_optim
