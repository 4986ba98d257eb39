#include "apps/finetune/plan_alternatives.h"

#include <functional>

#include "apps/finetune/state_report.h"
#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

bool goes(const TrainSetup& setup, const TrainerOptions& options) {
  try {
    (void)Trainer::plan(*setup.runtime.device, setup.model.config, options);
    return true;
  } catch (const PlanRefusal&) {
    return false;
  }
}

// The largest of step, 2 step, ... below `limit` that goes; 0 if none does. More never needs less.
int64_t largest_that_goes(int64_t step, int64_t limit, const std::function<bool(int64_t)>& try_out) {
  int64_t good = 0, bad = divide_up(limit, step);
  while (bad - good > 1) {
    const int64_t middle = (good + bad) / 2;
    (try_out(middle * step) ? good : bad) = middle;
  }
  return good * step;
}

// In whole MiB.
std::string raised_limit(const PlanRefusal& refusal) {
  const std::string tier(name(refusal.tier()));
  return "--" + tier + "_memory " + std::to_string(divide_up(refusal.least_bytes(), kMiB)) + "MiB";
}

}  // namespace

std::optional<RaisedPlan> raise_limits(gpu::Device& device, TrainSetup& setup, const PlanRefusal& refusal) {
  constexpr int kTries = 4;  // what one limit leaves to another settles at once, or never
  RaisedPlan raised;
  PlanRefusal last = refusal;
  for (int i = 0; i < kTries; ++i) {
    if (!raised.settings.empty()) raised.settings += ' ';
    raised.settings += raised_limit(last);
    TrainerOptions& trainer = setup.trainer;
    (last.tier() == Tier::device ? trainer.device_limit_bytes : trainer.host_limit_bytes) =
        round_up(last.least_bytes(), kMiB);
    try {
      raised.plan = Trainer::plan(device, setup.model.config, trainer);
      return raised;
    } catch (const PlanRefusal& next) {
      last = next;
    }
  }
  return std::nullopt;
}

std::vector<std::string> settings_that_would_go(const TrainSetup& setup, const PlanRefusal& refusal) {
  std::vector<std::string> found{raised_limit(refusal)};
  if (setup.trainer.recompute == Recompute::none) {
    TrainerOptions options = setup.trainer;
    options.recompute = Recompute::automatic;
    if (goes(setup, options)) found.emplace_back("--recompute auto");
  }
  for (const cpu_optim::StateFormat format : smaller_formats(setup.trainer.state_format)) {
    TrainerOptions options = setup.trainer;
    options.state_format = format;
    if (!goes(setup, options)) continue;
    found.push_back("--state_format " + std::string(cpu_optim::name(format)));
    break;
  }
  const auto with_limits = [&](int64_t rows, int64_t tokens_per_row) {
    TrainerOptions options = setup.trainer;
    options.limits.rows = rows;
    options.limits.tokens_per_row = tokens_per_row;
    options.limits.tokens = round_up(rows * tokens_per_row, kTokenPadding);
    return goes(setup, options);
  };
  const BatchLimits& limits = setup.trainer.limits;
  if (const int64_t rows = largest_that_goes(
          1, limits.rows, [&](int64_t count) { return with_limits(count, limits.tokens_per_row); });
      rows > 0) {
    found.push_back("--per_device_train_batch_size " + std::to_string(rows));
  }
  if (const int64_t tokens =
          largest_that_goes(kTokenPadding, limits.tokens_per_row,
                            [&](int64_t count) { return with_limits(limits.rows, count); });
      tokens > 0) {
    found.push_back("--max_seq_length " + std::to_string(tokens));
  }
  return found;
}

}  // namespace sluice::finetune
