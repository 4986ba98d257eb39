#include "apps/finetune/learning_rate.h"

#include <cmath>
#include <gtest/gtest.h>

namespace sluice::finetune {
namespace {

using Schedule = LearningRateSchedule;

LearningRate rate(Schedule schedule, int64_t warmup_steps, int64_t total_steps) {
  return {.schedule = schedule, .peak = 2.0, .warmup_steps = warmup_steps, .total_steps = total_steps};
}

// Expected numbers are the formulas of transformers/optimization.py done by hand, times a peak of 2.
TEST(LearningRate, ConstantIsThePeakAfterWarmUp) {
  const LearningRate constant = rate(Schedule::constant, 4, 10);
  EXPECT_EQ(constant.at(0), 0);
  EXPECT_EQ(constant.at(1), 0.5);
  EXPECT_EQ(constant.at(4), 2);
  EXPECT_EQ(constant.at(5), 2);
  EXPECT_EQ(constant.at(9), 2);
  EXPECT_EQ(rate(Schedule::constant, 0, 10).at(0), 2);
}

TEST(LearningRate, LinearFallsToZeroOneStepAfterTheLast) {
  const LearningRate linear = rate(Schedule::linear, 2, 10);
  EXPECT_EQ(linear.at(0), 0);
  EXPECT_EQ(linear.at(1), 1);
  EXPECT_EQ(linear.at(2), 2);
  EXPECT_EQ(linear.at(3), 1.75);  // 7/8 of the peak
  EXPECT_EQ(linear.at(9), 0.25);  // 1/8
  EXPECT_EQ(linear.at(10), 0);
  EXPECT_EQ(linear.at(11), 0);  // never below
}

TEST(LearningRate, LinearWithoutWarmUpStartsAtThePeak) {
  const LearningRate linear = rate(Schedule::linear, 0, 4);
  EXPECT_EQ(linear.at(0), 2);
  EXPECT_EQ(linear.at(1), 1.5);
  EXPECT_EQ(linear.at(3), 0.5);
}

TEST(LearningRate, CosineFollowsHalfAWave) {
  const LearningRate cosine = rate(Schedule::cosine, 2, 8);
  EXPECT_EQ(cosine.at(0), 0);
  EXPECT_EQ(cosine.at(1), 1);
  EXPECT_EQ(cosine.at(2), 2);
  EXPECT_NEAR(cosine.at(3), 1 + std::sqrt(3.0) / 2, 1e-15);  // cos 30 degrees
  EXPECT_NEAR(cosine.at(5), 1, 1e-15);                       // half way
  EXPECT_NEAR(cosine.at(7), 1 - std::sqrt(3.0) / 2, 1e-15);
  EXPECT_NEAR(cosine.at(8), 0, 1e-15);
}

TEST(LearningRate, WarmUpMayBeTheWholeRun) {
  for (Schedule schedule : {Schedule::constant, Schedule::linear, Schedule::cosine}) {
    const LearningRate warm_up = rate(schedule, 4, 4);
    EXPECT_EQ(warm_up.at(3), 1.5);
    EXPECT_TRUE(std::isfinite(warm_up.at(4)));
  }
}

TEST(LearningRate, LastStepOfASingleStepRun) {
  EXPECT_EQ(rate(Schedule::linear, 0, 1).at(0), 2);
  EXPECT_EQ(rate(Schedule::cosine, 0, 1).at(0), 2);
}

}  // namespace
}  // namespace sluice::finetune
