#include <cmath>
#include <string>

#include "cpu_optim/adamw.h"
#include "cpu_optim/pieces.h"
#include "cpu_optim/random.h"

namespace sluice::cpu_optim {
namespace {

void require(bool valid, const char* option, double value, const char* range) {
  if (valid) return;
  throw Error(ErrorKind::usage, std::string(option) + " is " + std::to_string(value) +
                                    " (the optimizer would diverge or divide by zero). Use a value " + range +
                                    ".");
}

void validate(const AdamOptions& options) {
  const auto finite_from_0 = [](double value) { return std::isfinite(value) && value >= 0; };
  require(finite_from_0(options.learning_rate), "learning_rate", options.learning_rate, "from 0");
  require(options.beta1 >= 0 && options.beta1 < 1, "adam_beta1", options.beta1, "in [0, 1)");
  require(options.beta2 >= 0 && options.beta2 < 1, "adam_beta2", options.beta2, "in [0, 1)");
  require(finite_from_0(options.epsilon), "adam_epsilon", options.epsilon, "from 0");
  require(finite_from_0(options.weight_decay), "weight_decay", options.weight_decay, "from 0");
}

}  // namespace

AdamStep make_adam_step(const AdamOptions& options, int64_t step, float gradient_scale, uint64_t seed) {
  SLUICE_CHECK(step >= 1, "steps count from 1");
  validate(options);
  const bool decoupled = options.variant == AdamVariant::adamw;
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  return {
      .gradient_scale = gradient_scale,
      .l2 = decoupled ? 0.0f : static_cast<float>(options.weight_decay),
      .beta1 = static_cast<float>(options.beta1),
      .gradient_share1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .gradient_share2 = static_cast<float>(1 - options.beta2),
      .v_correction = static_cast<float>(1 / std::sqrt(correction2)),
      .epsilon = static_cast<float>(options.epsilon),
      .decay = decoupled ? static_cast<float>(1 - options.learning_rate * options.weight_decay) : 1.0f,
      .step_size = static_cast<float>(options.learning_rate / correction1),
      .random_key = random_key_of(seed, step),
  };
}

void update(Executor& executor, const StateSpan& state, FloatView gradient, const AdamStep& step) {
  SLUICE_CHECK(gradient.size() == state.size);
  for_each_piece(executor, state.size, [&](int64_t begin, int64_t count) {
    update(state.subrange(begin, count), gradient.subrange(begin, count), step);
  });
}

}  // namespace sluice::cpu_optim
