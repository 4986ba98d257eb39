#include "cpu_optim/rounded_step.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "tests/cpu_optim/nasty_values.h"

namespace sluice::cpu_optim {
namespace {

constexpr double kUnit = 0x1p-24;       // of one rounding, relative
constexpr double kSmallest = 0x1p-149;  // of one that is subnormal

// The formula of adamw.h in double, with the same scalars; and what its terms sum up to without signs.
struct Exact {
  double m = 0, v = 0, w = 0, move = 0, m_terms = 0, w_terms = 0;
};
Exact exact_step(RoundedElement old, float gradient, const AdamStep& step, double root_factor) {
  Exact result;
  const double g = double{gradient} * step.gradient_scale + double{step.l2} * old.w;
  const double g_terms = std::abs(double{gradient} * step.gradient_scale) + std::abs(double{step.l2} * old.w);
  result.m = double{step.beta1} * old.m + double{step.gradient_share1} * g;
  result.m_terms = std::abs(double{step.beta1} * old.m) + double{step.gradient_share1} * g_terms;
  result.v = double{step.beta2} * old.v + double{step.gradient_share2} * g * g;
  const double denominator = std::sqrt(result.v) * step.v_correction * root_factor + step.epsilon;
  result.move = double{step.step_size} / denominator;  // of an m of 1
  result.w = double{step.decay} * old.w - result.move * result.m;
  result.w_terms = std::abs(double{step.decay} * old.w);
  return result;
}

// Roundings: of m 4 (scalar, product, sum, and of L2 one more), of v 6 (of its root, and the root's scalar,
// twice), of the weight its own and of the move 3 (half of v), 3 of the denominator, one of the quotient and
// those of m. For L2 the gradient's are relative to its terms, so v is not looked at.
void expect_close(RoundedElement old, float gradient, const AdamStep& adam, float root_factor) {
  const Exact exact = exact_step(old, gradient, adam, root_factor);
  const RoundedElement ours = rounded_adam(old, gradient, rounded_step(adam, root_factor));
  EXPECT_LE(std::abs(ours.m - exact.m), 4 * kUnit * exact.m_terms + 4 * kSmallest) << gradient;
  if (adam.l2 != 0) return;
  EXPECT_LE(std::abs(ours.v - exact.v), 6 * kUnit * exact.v + 4 * kSmallest) << gradient;
  if (exact.v < 0x1p-120 || std::abs(exact.m) < 0x1p-100) return;  // subnormal parts
  const double move_error = exact.move * (7.5 * std::abs(exact.m) + 4 * exact.m_terms) * kUnit;
  EXPECT_LE(std::abs(ours.w - exact.w),
            kUnit * (std::abs(exact.w) + 2 * exact.w_terms) + move_error + kSmallest)
      << gradient << " " << old.w;
}

TEST(RoundedStep, ErrorIsThatOfItsRoundings) {
  const std::vector<float> weights = nasty_mixture(20'000, 1), gradients = nasty_mixture(20'000, 2),
                           first = nasty_mixture(20'000, 3), second = nasty_mixture(20'000, 4);
  for (const AdamVariant variant : {AdamVariant::adamw, AdamVariant::adam}) {
    for (const int64_t step : {1, 2, 1000, 100'000}) {
      for (const double epsilon : {1e-8, 1e-3, 0.0}) {
        const AdamStep adam = make_adam_step({.epsilon = epsilon, .variant = variant}, step, 0.37f);
        for (size_t i = 0; i < weights.size(); ++i) {
          if (std::abs(gradients[i]) > 1e15f || std::abs(second[i]) > 1e30f) continue;
          expect_close({weights[i], first[i], std::abs(second[i])}, gradients[i], adam,
                       i % 2 == 0 ? 1 : 1.011f);
        }
      }
    }
  }
}

TEST(RoundedStep, WithoutALearningRateWeightsStay) {
  for (const double epsilon : {1e-8, 0.0}) {
    const AdamStep adam = make_adam_step({.learning_rate = 0, .epsilon = epsilon}, 3);
    for (const float w : {0.0f, -1.5f, 0x1p-149f, 1e30f}) {
      for (const float g : {1.0f, -0x1p-30f, 1e10f}) {
        const RoundedElement next = rounded_adam({w, 0.25f, 0}, g, rounded_step(adam));
        EXPECT_EQ(next.w, w);
        EXPECT_GT(next.v, 0);
      }
    }
  }
}

// 2 over the step size and over the least unit is no float.
TEST(RoundedStep, TinyLearningRateAndNoGradientGiveNoNaN) {
  for (const double rate : {1e-5, 1e-12, 1e-30, 1e-44}) {
    const AdamStep adam = make_adam_step({.learning_rate = rate, .weight_decay = 0}, 1);
    EXPECT_EQ(rounded_adam({0.5f, 0, 0}, 0, rounded_step(adam)).w, 0.5f);
    const RecordUnits units = next_units(0, 0, 0, rounded_step(adam));
    const RoundedStep record = in_half_units(rounded_step(adam), {0, 0}, units);
    EXPECT_EQ(rounded_adam({0.5f, 0, 0}, 0, record).w, 0.5f);
  }
}

// What is scaled by powers of two is rounded alike.
TEST(RoundedStep, HalfUnitsChangeNoBit) {
  const RoundedStep step = rounded_step(make_adam_step({}, 5, 0.7f));
  const RecordUnits old{0x1p-20f, 0x1p-31f}, next{0x1p-18f, 0x1p-29f};
  for (const float g : {1.5f, -0.3f, 0.001f}) {
    const RoundedElement plain = rounded_adam({0.7f, 0.01f, 0.002f}, g, step);
    const RoundedElement scaled = rounded_adam({0.7f, 0.01f / (old.first / 2), 0.002f / (old.second / 2)}, g,
                                               in_half_units(step, old, next));
    EXPECT_EQ(scaled.w, plain.w);
    EXPECT_EQ(scaled.m * (next.first / 2), plain.m);
    EXPECT_EQ(scaled.v * (next.second / 2), plain.v);
  }
}

TEST(NextUnits, BoundEveryElement) {
  const AdamStep adam = make_adam_step({}, 3, 0.7f);
  const RecordUnits units = next_units(3.0f, 2.0f, 5.0f, rounded_step(adam));
  EXPECT_EQ(units.first, first_moment_unit(0.9f * 2 + 0.1f * 0.7f * 3));
  EXPECT_EQ(units.second, second_moment_unit(0.999f * 5 + 0.001f * 2.1f * 2.1f));
  // Just below the largest code, where a bound that is rounded down must not make the unit too small.
  for (const float largest : {1.8749999f, 1.875f, 3.7499998f, 61439.0f}) {
    for (const float g : {0.0f, 0.1f, largest}) {
      const RecordUnits of = next_units(g, largest, largest, rounded_step(adam));
      const RoundedElement next = rounded_adam({0, largest, largest}, g, rounded_step(adam));
      EXPECT_LE(encode_first_moment(next.m, twice_inverse(of.first), 0xfffff), 0x7f);
      const double top = std::ldexp(1.875, kSecondMomentOctaves) * of.second;
      EXPECT_LT(next.v, top);
    }
  }
}

}  // namespace
}  // namespace sluice::cpu_optim
