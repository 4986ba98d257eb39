#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <vector>

#include "gpu/host/row_ops.h"
#include "hwy/targets.h"

// The exp of the row ops, seen through the gradient of cross-entropy: with max 0, sum 1 and a target outside
// the piece, d_logits is e^logit.
namespace sluice::gpu::host {
namespace {

std::vector<float> exp_of(std::vector<float> x) {
  int32_t target = 1 << 30;
  float zero = 0, one = 1;
  const auto cell = [](auto& value, DType dtype) { return View(&value, dtype, 1, 1); };
  CrossEntropyBackward op;
  op.logits = op.d_logits = View(x.data(), DType::f32, 1, static_cast<int64_t>(x.size()));
  op.targets = cell(target, DType::i32);
  op.weights = op.sum = cell(one, DType::f32);
  op.max = cell(zero, DType::f32);
  SerialExecutor serial;
  run(op, serial, {});
  return x;
}

double ulps(float actual, double expected) {
  const double magnitude = std::max(std::abs(expected), 0x1p-126);
  return std::abs(actual - expected) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

TEST(RowOpsExp, IsWithinTwoUlp) {
  std::vector<float> x;
  for (float value = -87.33f; value < 88.72f; value += 0x1.3p-11f) x.push_back(value);
  for (int exponent = -40; exponent < 6; ++exponent)
    for (float sign : {-1.0f, 1.0f}) x.push_back(sign * std::ldexp(1.37f, exponent));
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    const std::vector<float> y = exp_of(x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(double{x[i]})));
    EXPECT_LE(worst, 2) << hwy::TargetName(target);
    RecordProperty(hwy::TargetName(target), std::to_string(worst));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST(RowOpsExp, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> y = exp_of({0, -0.0f, 88.7228f, -87.3365f, std::nanf(""), std::nanf("5"), 88.73f,
                                       1000, infinity, -87.4f, -104.5f, -1000, -infinity});
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  EXPECT_LE(ulps(y[2], std::exp(double{88.7228f})), 2);
  EXPECT_LE(ulps(y[3], std::exp(double{-87.3365f})), 2);
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[5]));
  for (size_t i : {6, 7, 8}) EXPECT_GT(y[i], 3.4e38f) << i;  // no promise whether infinity or the largest
  for (size_t i : {9, 10, 11, 12}) EXPECT_EQ(y[i], 0) << i;
}

}  // namespace
}  // namespace sluice::gpu::host
