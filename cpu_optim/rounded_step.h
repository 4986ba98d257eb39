#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_optim/adamw.h"
#include "cpu_optim/rounding.h"

// The step of the formats that round what they store (split_bf16, bf16, int8): the definition, one element at
// a time. Kernels do the same by vectors. It is the formula of adamw.h with its scalars multiplied out
// beforehand, and three of its sums fused: a third fewer operations, which is what bounds these formats, and
// no more error, as each result is rounded fewer times.
//
//   m  = fma(beta1, m, gradient_share1 * gradient)
//   r  = gradient_root2 * gradient
//   v  = fma(r, r, beta2 * v)
//   w  = fma(decay, w, m / fma(root_factor, sqrt(v), epsilon))
//
// Adam's L2 first makes the gradient fma(l2, w, gradient_scale * gradient).
namespace sluice::cpu_optim {

// Scalars in fp32, computed in double and rounded once.
struct RoundedStep {
  float gradient_scale = 1, l2 = 0;  // where l2 is 0, the scale is in the gradient's two factors
  float beta1 = 0, gradient_share1 = 0;
  float beta2 = 0, gradient_root2 = 0;  // sqrt(1 - beta2)
  // Negative: over minus the step size. For a step size of 0, what makes the quotient 0.
  float root_factor = -1, epsilon = -std::numeric_limits<float>::infinity();
  float decay = 1;
};

// Not infinite, as that times a root of 0 is NaN.
inline constexpr float kLeast = std::numeric_limits<float>::lowest();

// `root_factor` multiplies the root of the second moment.
inline RoundedStep rounded_step(const AdamStep& step, float root_factor = 1) {
  const double scale = step.l2 == 0 ? step.gradient_scale : 1;
  const double inverse = -1 / double{step.step_size};
  RoundedStep result{
      .gradient_scale = step.gradient_scale,
      .l2 = step.l2,
      .beta1 = step.beta1,
      .gradient_share1 = static_cast<float>(step.gradient_share1 * scale),
      .beta2 = step.beta2,
      .gradient_root2 = static_cast<float>(std::sqrt(double{step.gradient_share2}) * scale),
      .decay = step.decay,
  };
  if (step.step_size == 0) return result;
  result.root_factor = std::max(static_cast<float>(step.v_correction * inverse * root_factor), kLeast);
  result.epsilon = static_cast<float>(step.epsilon * inverse);
  return result;
}

struct RoundedElement {
  float w = 0, m = 0, v = 0;
};

// Before m and v are rounded.
inline RoundedElement rounded_adam(RoundedElement old, float gradient, const RoundedStep& step) {
  const float g = step.l2 == 0 ? gradient : std::fma(step.l2, old.w, step.gradient_scale * gradient);
  const float m = std::fma(step.beta1, old.m, step.gradient_share1 * g);
  const float root = step.gradient_root2 * g;
  const float v = std::fma(root, root, step.beta2 * old.v);
  const float denominator = std::fma(step.root_factor, std::sqrt(v), step.epsilon);
  return {std::fma(step.decay, old.w, m / denominator), m, v};
}

// Of the scales of a record in a step of int8.
struct RecordUnits {
  float first = 0, second = 0;
};

// Bounds the magnitude of what rounded_adam makes of a record's gradients, by their largest and, for L2, that
// of the weights.
inline float gradient_bound(float largest_gradient, float largest_weight, const RoundedStep& step) {
  if (step.l2 == 0) return largest_gradient;
  return std::abs(step.gradient_scale) * largest_gradient + step.l2 * largest_weight;
}

// The old moments are the largest in magnitude. Sums are rounded otherwise than rounded_adam's, by 2^-22 at
// most, for which record_unit has room.
inline RecordUnits next_units(float gradient_bound, float largest_first, float largest_second,
                              const RoundedStep& step) {
  const float g = std::abs(step.gradient_share1) * gradient_bound,
              root = step.gradient_root2 * gradient_bound;
  return {first_moment_unit(step.beta1 * largest_first + g),
          second_moment_unit(step.beta2 * largest_second + root * root)};
}

// The step for moments that come in old half units and leave in new ones: powers of two, so that other
// numbers are the same, but for those that become subnormal.
inline RoundedStep in_half_units(RoundedStep step, RecordUnits old, RecordUnits next) {
  const float to_first = twice_inverse(next.first), to_second = twice_inverse(next.second);
  const float to_root = inverse_root_of_half(next.second);
  step.beta1 *= old.first / 2 * to_first;
  step.gradient_share1 *= to_first;
  step.beta2 *= old.second / 2 * to_second;
  step.gradient_root2 *= to_root;
  step.root_factor = std::max(step.root_factor * (to_first / to_root), kLeast);
  step.epsilon *= to_first;
  return step;
}

}  // namespace sluice::cpu_optim
