#pragma once

#include <cstdint>

namespace sluice::finetune {

enum class LearningRateSchedule { constant, linear, cosine };

// The learning rate of every optimizer step, equal to what Hugging Face's get_*_schedule_with_warmup give
// (transformers/optimization.py). So with warm-up the first step's rate is 0. A value.
struct LearningRate {
  LearningRateSchedule schedule = LearningRateSchedule::linear;
  double peak = 2e-5;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;

  // `step` counts optimizer steps from 0.
  double at(int64_t step) const;
};

}  // namespace sluice::finetune
