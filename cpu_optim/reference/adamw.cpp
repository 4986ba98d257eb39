#include "cpu_optim/reference/adamw.h"

#include <cmath>

#include "engine/base/error.h"

namespace sluice::cpu_optim::reference {

void update(std::span<double> w, std::span<double> m, std::span<double> v, std::span<const double> gradient,
            const AdamOptions& options, int64_t step, double gradient_scale, double root_factor) {
  SLUICE_CHECK(m.size() == w.size() && v.size() == w.size() && gradient.size() == w.size() && step >= 1);
  const double t = static_cast<double>(step);
  for (size_t i = 0; i < w.size(); ++i) {
    double g = gradient[i] * gradient_scale;
    if (options.variant == AdamVariant::adam) g += options.weight_decay * w[i];
    if (options.variant == AdamVariant::adamw) w[i] -= options.learning_rate * options.weight_decay * w[i];
    m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
    v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
    const double m_hat = m[i] / (1 - std::pow(options.beta1, t));
    const double v_hat = v[i] / (1 - std::pow(options.beta2, t));
    w[i] -= options.learning_rate * m_hat / (root_factor * std::sqrt(v_hat) + options.epsilon);
  }
}

}  // namespace sluice::cpu_optim::reference
