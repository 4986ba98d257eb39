#include "apps/finetune/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/error.h"

namespace sluice::finetune {

double LearningRate::at(int64_t step) const {
  SLUICE_CHECK(step >= 0);
  if (step < warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  const double after_warmup = static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  switch (schedule) {
    case LearningRateSchedule::constant:
      return peak;
    case LearningRateSchedule::linear:
      return peak * std::max(0.0, static_cast<double>(total_steps - step) / after_warmup);
    case LearningRateSchedule::cosine: {
      const double progress = static_cast<double>(step - warmup_steps) / after_warmup;
      return peak * std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
    }
  }
  SLUICE_CHECK(false, "schedule");
}

}  // namespace sluice::finetune
