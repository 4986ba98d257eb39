#include "apps/finetune/model/random_weights.h"

#include <cmath>
#include <gtest/gtest.h>
#include <set>
#include <vector>

namespace sluice {
namespace {

double normal_below(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

TEST(NormalQuantile, InvertsTheNormalDistribution) {
  EXPECT_EQ(normal_quantile(0.5), 0.0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963985, 1e-6);
  EXPECT_NEAR(normal_quantile(1e-12), -7.034483825, 1e-5);  // beyond the third branch's edge
  for (double x = -8; x <= 0; x += 0.0625) {
    EXPECT_NEAR(normal_quantile(normal_below(x)), x, 2e-7 * (1 - x)) << x;
    EXPECT_NEAR(normal_quantile(1 - normal_below(std::max(x, -5.0))), -std::max(x, -5.0), 1e-5) << x;
  }
}

// Against the moments of a normal distribution, each at six of its own standard errors.
TEST(FillNormal, HasTheMomentsOfANormalDistribution) {
  constexpr size_t kCount = 1 << 20;
  std::vector<float> values(kCount);
  fill_normal(weight_key(1, "a"), 0, 0.5, values);
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const double x = values[i] / 0.5;
    mean += x / kCount;
    square += x * x / kCount;
    fourth += x * x * x * x / kCount;
    if (i > 0) neighbours += x * values[i - 1] / 0.5 / kCount;
  }
  const double error = 1 / std::sqrt(double{kCount});
  EXPECT_NEAR(mean, 0, 6 * error);
  EXPECT_NEAR(square, 1, 6 * std::sqrt(2.0) * error);
  EXPECT_NEAR(fourth, 3, 6 * std::sqrt(96.0) * error);
  EXPECT_NEAR(neighbours, 0, 6 * error);
}

TEST(FillNormal, IsAFunctionOfThePlace) {
  std::vector<float> whole(1000), parts(1000);
  fill_normal(weight_key(7, "model.norm"), 0, 1, whole);
  for (const size_t step : {1, 3, 256}) {
    for (size_t begin = 0; begin < parts.size(); begin += step) {
      fill_normal(weight_key(7, "model.norm"), begin, 1,
                  std::span(parts).subspan(begin, std::min(step, parts.size() - begin)));
    }
    EXPECT_EQ(parts, whole) << step;
  }
}

TEST(WeightKey, DiffersBySeedAndTensor) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (const char* name : {"", "a", "b", "model.layers.1.x", "model.layers.10.x"})
      keys.insert(weight_key(seed, name));
  }
  EXPECT_EQ(keys.size(), 500u);
}

}  // namespace
}  // namespace sluice
