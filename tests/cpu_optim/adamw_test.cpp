#include "cpu_optim/adamw.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>

#include "apps/common/pool.h"
#include "cpu_optim/convert.h"
#include "cpu_optim/reference/adamw.h"
#include "tests/cpu_optim/huge_range.h"
#include "tests/cpu_optim/nasty_values.h"
#include "tests/cpu_optim/owned_state.h"
#include "tests/cpu_optim/simd_targets_for_test.h"

namespace sluice::cpu_optim {
namespace {

constexpr double kUnit = 0x1p-24;       // half a unit of fp32, relative
constexpr double kSmallest = 0x1p-149;  // of fp32, absolute

// The two formats with fp32 moments, side by side.
struct States {
  explicit States(std::span<const float> weights, size_t offset = 0)
      : size(weights.size()),
        split_state(StateFormat::split, weights, offset),
        fp32_state(StateFormat::fp32, weights, offset) {}

  StateSpan split() { return split_state.span(); }
  StateSpan fp32() { return fp32_state.span(); }

  size_t size;
  OwnedState split_state, fp32_state;
};

void expect_same_numbers(States& states) {
  const ReadState split(states.split()), fp32(states.fp32());
  for (size_t i = 0; i < states.size; ++i) {
    ASSERT_EQ(bits(split.w[i]), bits(fp32.w[i])) << "element " << i;
    ASSERT_EQ(bits(split.m[i]), bits(fp32.m[i])) << "element " << i;
    ASSERT_EQ(bits(split.v[i]), bits(fp32.v[i])) << "element " << i;
    ASSERT_EQ(states.split().weight[i].bits, states.fp32().weight[i].bits) << "element " << i;
  }
}

// Error bounds of one step from the fp32 state (w, m, v), by the count of roundings in adamw.h's order.
struct Bounds {
  double w, m, v;
};

Bounds bounds(float w, float m, float v, double gradient, const AdamOptions& options, int64_t step,
              double w_new, double m_new, double v_new) {
  const bool l2 = options.variant == AdamVariant::adam;
  const double g = std::abs(gradient) + (l2 ? options.weight_decay * std::abs(w) : 0);  // known to 4 units
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  // Factor, product and sum: 3 units of each term; the gradient's own 4.
  const double m_error =
      3 * kUnit * std::abs(options.beta1 * m) + 7 * kUnit * (1 - options.beta1) * g + 4 * kSmallest;
  const double v_error = 3 * kUnit * options.beta2 * std::abs(v) + 12 * kUnit * (1 - options.beta2) * g * g +
                         (4 + 2 * g) * kSmallest;
  const double root = std::sqrt(v_new / correction2);
  const double denominator = root + options.epsilon;
  // |sqrt(a) - sqrt(b)| <= min(|a - b| / sqrt(a), sqrt(|a - b|)); four roundings beside it.
  const double root_error = std::min(v_error / std::sqrt(std::max(v_new, kSmallest)), std::sqrt(v_error));
  const double denominator_error = 5 * kUnit * denominator + root_error / std::sqrt(correction2);
  const double move = options.learning_rate * std::abs(m_new) / correction1 / denominator;
  // learning_rate * m may be subnormal, and its rounding is then divided like it.
  const double product_error = options.learning_rate * m_error / correction1 + kSmallest;
  const double move_error = product_error / (denominator - denominator_error) +
                            move * (denominator_error / (denominator - denominator_error) + 4 * kUnit);
  return {move_error + kUnit * (3 * std::abs(w) + std::abs(w_new)) + 4 * kSmallest, m_error, v_error};
}

// Runs `steps` steps of fp32 states and compares each element of each step with one step of the oracle from
// there.
void compare_with_reference(const AdamOptions& options, size_t size, size_t offset, DType dtype, float scale,
                            int steps) {
  States states(nasty_mixture(size), offset);
  for (int64_t step = 1; step <= steps; ++step) {
    const std::vector<float> wide = gradient_of_step(size, step);
    const std::vector<BFloat16> narrow = as_bf16(wide);
    const ReadState old(states.fp32());
    std::vector<double> w(old.w.begin(), old.w.end()), m(old.m.begin(), old.m.end()),
        v(old.v.begin(), old.v.end()), g(size);
    for (size_t i = 0; i < size; ++i) g[i] = dtype == DType::bf16 ? to_float(narrow[i]) : wide[i];
    reference::update(w, m, v, g, options, step, scale);
    const FloatView view = dtype == DType::bf16 ? FloatView(narrow) : FloatView(wide);
    update(states.fp32(), view, make_adam_step(options, step, scale));
    const ReadState state(states.fp32());
    for (size_t i = 0; i < size; ++i) {
      const Bounds bound =
          bounds(old.w[i], old.m[i], old.v[i], g[i] * scale, options, step, w[i], m[i], v[i]);
      ASSERT_LE(std::abs(state.m[i] - m[i]), bound.m)
          << "m, element " << i << ", step " << step << ", gradient " << g[i];
      if (v[i] > std::numeric_limits<float>::max()) {  // L2 of a huge weight
        ASSERT_TRUE(std::isinf(state.v[i]));
        continue;
      }
      ASSERT_LE(std::abs(state.v[i] - v[i]), bound.v)
          << "v, element " << i << ", step " << step << ", gradient " << g[i];
      if (std::abs(w[i]) > std::numeric_limits<float>::max()) continue;
      ASSERT_LE(std::abs(state.w[i] - w[i]), bound.w)
          << "w, element " << i << ", step " << step << ", was " << old.w[i];
      ASSERT_EQ(states.fp32().weight[i].bits, sluice::split(state.w[i]).high.bits);
    }
  }
}

TEST(Reference, FirstStepByHand) {
  // Corrected moments of the first step are g and g^2, so w moves by lr * g / (|g| + eps), after the decay.
  std::vector<double> w = {2}, m = {0}, v = {0}, g = {0.5};
  const AdamOptions options{.learning_rate = 0.1, .epsilon = 0.5, .weight_decay = 0.25};
  reference::update(w, m, v, g, options, 1);
  EXPECT_NEAR(w[0], 2 * (1 - 0.1 * 0.25) - 0.1 * 0.5 / (0.5 + 0.5), 1e-14);
  EXPECT_NEAR(m[0], 0.05, 1e-15);
  EXPECT_NEAR(v[0], 0.00025, 1e-16);
}

TEST(Reference, SecondStepByHand) {
  std::vector<double> w = {1}, m = {0}, v = {0};
  const AdamOptions options{
      .learning_rate = 0.1, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 0, .weight_decay = 0};
  reference::update(w, m, v, std::vector<double>{1}, options, 1);
  reference::update(w, m, v, std::vector<double>{3}, options, 2);
  EXPECT_NEAR(m[0], 1.75, 1e-15);    // 0.5 * 0.5 + 0.5 * 3
  EXPECT_NEAR(v[0], 2.4375, 1e-15);  // 0.75 * 0.25 + 0.25 * 9
  EXPECT_NEAR(w[0], 1 - 0.1 - 0.1 * (1.75 / 0.75) / std::sqrt(2.4375 / 0.4375), 1e-14);
}

TEST(AdamW, EveryElementAgreesWithReference) {
  for_each_target([](int64_t) {
    for (const AdamVariant variant : {AdamVariant::adamw, AdamVariant::adam}) {
      const AdamOptions options{.learning_rate = 3e-4, .weight_decay = 0.1, .variant = variant};
      for (const DType dtype : {DType::bf16, DType::f32}) {
        for (const size_t size : sizes()) compare_with_reference(options, size, size % 5, dtype, 1.0f, 4);
        compare_with_reference(options, 1000, 1, dtype, 0.3125f, 40);
      }
    }
  });
}

TEST(AdamW, LongRunAgreesWithReference) {
  compare_with_reference({.learning_rate = 1e-5}, 513, 0, DType::bf16, 0.7f, 1000);
  compare_with_reference({.learning_rate = 1e-1, .beta1 = 0, .beta2 = 0.5, .epsilon = 1e-3}, 513, 0,
                         DType::f32, 1, 50);
}

TEST(AdamW, SplitHasTheBitsOfFp32For1000Steps) {
  const AdamOptions options{.learning_rate = 1e-3};
  States states(nasty_mixture(4097));
  for (int64_t step = 1; step <= 1000; ++step) {
    const std::vector<BFloat16> gradient = as_bf16(gradient_of_step(states.size, step));
    const AdamStep adam = make_adam_step(options, step, step % 3 == 0 ? 0.125f : 1.0f);
    update(states.split(), gradient, adam);
    update(states.fp32(), gradient, adam);
    if (step % 100 == 0 || step < 4) expect_same_numbers(states);
    if (HasFatalFailure()) return;
  }
}

TEST(AdamW, Fp32NeedsNoBf16Copy) {
  for_each_target([](int64_t) {
    for (const size_t size : sizes()) {
      States states(nasty_mixture(size), 1), bare = states;
      const std::vector<float> gradient = gradient_of_step(size, 1);
      StateSpan span = bare.fp32();
      span.weight = nullptr;
      SerialExecutor executor;
      update(states.fp32(), gradient, make_adam_step({}, 1));
      update(executor, span, gradient, make_adam_step({}, 1));
      const auto low = [size](const StateSpan& state) {
        return std::string(reinterpret_cast<const char*>(state.low), size * sizeof(float));
      };
      EXPECT_TRUE(low(states.fp32()) == low(bare.fp32())) << size;
    }
  });
}

TEST(AdamW, AllTargetsGiveTheSameBits) {
  std::string first;
  for_each_target([&](int64_t) {
    States states(nasty_mixture(4097), 3);
    for (int64_t step = 1; step <= 20; ++step) {
      const std::vector<float> gradient = gradient_of_step(states.size, step);
      const AdamStep adam =
          make_adam_step({.variant = step % 2 == 0 ? AdamVariant::adam : AdamVariant::adamw}, step, 0.7f);
      update(states.split(), gradient, adam);
      update(states.fp32(), gradient, adam);
    }
    expect_same_numbers(states);
    const std::string result = bytes(states.split()) + bytes(states.fp32());
    if (first.empty()) first = result;
    EXPECT_TRUE(result == first);
  });
}

TEST(AdamW, ChunksAlignmentAndThreadsDoNotChangeBits) {
  const size_t size = 3 * kPieceElements + 777;
  const std::vector<float> weights = nasty_mixture(size);
  const std::vector<float> wide = gradient_of_step(size, 1);
  const std::vector<BFloat16> gradient = as_bf16(wide);
  const AdamStep adam = make_adam_step({}, 5, 0.9f);
  States whole(weights);
  update(whole.split(), gradient, adam);
  update(whole.fp32(), gradient, adam);
  const std::string expected_split = bytes(whole.split()), expected_fp32 = bytes(whole.fp32());

  for (const int64_t chunk : {7, 255, 1000, 65537}) {
    States states(weights, static_cast<size_t>(chunk % 13));
    for (int64_t begin = 0; begin < static_cast<int64_t>(size); begin += chunk) {
      const int64_t count = std::min(chunk, static_cast<int64_t>(size) - begin);
      update(states.split().subrange(begin, count), FloatView(gradient).subrange(begin, count), adam);
      update(states.fp32().subrange(begin, count), FloatView(gradient).subrange(begin, count), adam);
    }
    EXPECT_TRUE(bytes(states.split()) == expected_split) << "chunks of " << chunk;
    EXPECT_TRUE(bytes(states.fp32()) == expected_fp32) << "chunks of " << chunk;
  }
  for (const int threads : {1, 2, 3}) {
    const auto pool = make_pool(threads);
    States states(weights);
    update(*pool, states.split(), gradient, adam);
    update(*pool, states.fp32(), gradient, adam);
    EXPECT_TRUE(bytes(states.split()) == expected_split) << threads << " threads";
    EXPECT_TRUE(bytes(states.fp32()) == expected_fp32) << threads << " threads";
  }
}

TEST(AdamW, LeavesElementsOutsideTheRangeAlone) {
  for_each_target([](int64_t) {
    for (const size_t size : sizes()) {
      if (size > 300) continue;
      States states(nasty_mixture(size + 16));
      States untouched = states;
      const std::vector<float> gradient(size, 1.0f);
      const auto count = static_cast<int64_t>(size);
      update(states.split().subrange(8, count), gradient, make_adam_step({}, 1));
      update(states.fp32().subrange(8, count), gradient, make_adam_step({}, 1));
      for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 8}, {8 + count, 8}}) {
        EXPECT_TRUE(bytes(states.split().subrange(begin, length)) ==
                    bytes(untouched.split().subrange(begin, length)));
        EXPECT_TRUE(bytes(states.fp32().subrange(begin, length)) ==
                    bytes(untouched.fp32().subrange(begin, length)));
      }
    }
  });
}

TEST(AdamW, ZeroSizedRangeIsANoOp) {
  SerialExecutor executor;
  for (const StateFormat format : kStateFormats) {
    update({.format = format}, std::span<const float>(), make_adam_step({}, 1));
    update({.format = format}, std::span<const BFloat16>(), make_adam_step({}, 1));
    update(executor, {.format = format}, std::span<const float>(), make_adam_step({}, 1));
  }
}

// A bf16 weight would not move: 1e-5 is far below half its unit of 2^-8 (torchao issue 1124).
TEST(AdamW, ThousandSmallUpdatesMoveAWeightOfOne) {
  States states(std::vector<float>{1.0f});
  const std::vector<BFloat16> gradient = {to_bfloat16(1.0f)};
  for (int64_t step = 1; step <= 1000; ++step) {
    update(states.split(), gradient, make_adam_step({.learning_rate = 1e-5, .weight_decay = 0}, step));
  }
  EXPECT_NEAR(ReadState(states.split()).w[0], 1.0 - 0.01, 1000 * kUnit);
  EXPECT_NEAR(to_float(states.split().weight[0]), 0.99, 0x1p-9);
}

TEST(AdamW, NonFiniteGradientReachesItsElementOnly) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    States states(std::vector<float>(40, 1.0f));
    States clean(std::vector<float>(40, 1.0f));
    std::vector<float> gradient(40, 0.5f);
    update(clean.fp32(), gradient, make_adam_step({}, 1));
    gradient[17] = bad;
    update(states.fp32(), gradient, make_adam_step({}, 1));
    const ReadState reached(states.fp32()), expected(clean.fp32());
    for (size_t i = 0; i < 40; ++i) {
      if (i == 17) {
        EXPECT_FALSE(std::isfinite(reached.m[i]));
        EXPECT_FALSE(std::isfinite(reached.v[i]));
      } else {
        EXPECT_EQ(bits(reached.w[i]), bits(expected.w[i]));
      }
    }
  }
}

TEST(AdamW, GradientScaleIsOneMultiplication) {
  const float scale = 0.3f;
  const std::vector<float> gradient = gradient_of_step(257, 1);
  std::vector<float> scaled = gradient;
  for (float& value : scaled) value *= scale;
  States folded(nasty_mixture(257)), before(nasty_mixture(257));
  update(folded.split(), gradient, make_adam_step({}, 3, scale));
  update(before.split(), scaled, make_adam_step({}, 3));
  EXPECT_TRUE(bytes(folded.split()) == bytes(before.split()));
}

TEST(AdamW, DecayIsDecoupledAndL2IsNot) {
  // Without a gradient AdamW only shrinks the weight; Adam sees a gradient of weight_decay * w and takes a
  // full step.
  const AdamOptions adamw{.learning_rate = 0.1, .weight_decay = 0.5};
  AdamOptions adam = adamw;
  adam.variant = AdamVariant::adam;
  States decoupled(std::vector<float>{8.0f}), l2(std::vector<float>{8.0f});
  const std::vector<float> gradient = {0.0f};
  update(decoupled.fp32(), gradient, make_adam_step(adamw, 1));
  update(l2.fp32(), gradient, make_adam_step(adam, 1));
  const ReadState shrunk(decoupled.fp32()), moved(l2.fp32());
  EXPECT_NEAR(shrunk.w[0], 8 * (1 - 0.05), 8 * 2 * kUnit);
  EXPECT_EQ(shrunk.m[0], 0);
  EXPECT_NEAR(moved.w[0], 8 - 0.1, 8 * 2 * kUnit);
  EXPECT_NEAR(moved.m[0], 0.4, 0.4 * 8 * kUnit);
}

TEST(AdamW, TwoGroupsKeepTheirOwnRates) {
  const AdamOptions slow{.learning_rate = 1e-4, .weight_decay = 0},
      fast{.learning_rate = 1e-2, .weight_decay = 0.1};
  const std::vector<float> weights(200, 1.0f), gradient(200, 0.25f);
  States states(weights);
  for (int64_t step = 1; step <= 3; ++step) {
    update(states.split().subrange(0, 100), FloatView(gradient).subrange(0, 100), make_adam_step(slow, step));
    update(states.split().subrange(100, 100), FloatView(gradient).subrange(100, 100),
           make_adam_step(fast, step));
  }
  std::vector<double> w = {1, 1}, m(2), v(2), g(2, 0.25);
  for (int64_t step = 1; step <= 3; ++step) {
    reference::update(std::span(w).first(1), std::span(m).first(1), std::span(v).first(1),
                      std::span(g).first(1), slow, step);
    reference::update(std::span(w).last(1), std::span(m).last(1), std::span(v).last(1), std::span(g).last(1),
                      fast, step);
  }
  const ReadState moved(states.split());
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_NEAR(moved.w[i], w[i / 100], 3 * 4 * kUnit) << i;
  }
}

TEST(AdamStep, BiasCorrectionFollowsTheStepCount) {
  const AdamOptions options{.learning_rate = 1e-3};
  EXPECT_FLOAT_EQ(make_adam_step(options, 1).step_size, 1e-2f);
  EXPECT_FLOAT_EQ(make_adam_step(options, 2).step_size, static_cast<float>(1e-3 / 0.19));
  EXPECT_FLOAT_EQ(make_adam_step(options, 1).v_correction, static_cast<float>(1 / std::sqrt(0.001)));
  EXPECT_FLOAT_EQ(make_adam_step(options, 1'000'000'000'000).step_size, 1e-3f);
  EXPECT_FLOAT_EQ(make_adam_step(options, 1'000'000'000'000).v_correction, 1.0f);
}

TEST(AdamStep, RefusesValuesOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const AdamOptions& options :
       {AdamOptions{.learning_rate = -1}, AdamOptions{.learning_rate = nan}, AdamOptions{.beta1 = 1},
        AdamOptions{.beta2 = nan}, AdamOptions{.beta2 = -0.1}, AdamOptions{.epsilon = -1},
        AdamOptions{.weight_decay = -0.1}}) {
    EXPECT_THROW(make_adam_step(options, 1), Error);
  }
  try {
    make_adam_step({.beta1 = 1.5}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_THAT(error.what(), testing::HasSubstr("adam_beta1 is 1.5"));
  }
}

TEST(AdamW, IndicesBeyondInt32) {
  const int64_t begin = (int64_t{1} << 32) + 12345;  // elements; its low 32 bits are a valid index too
  const int64_t count = 1000;
  const auto size = static_cast<size_t>(begin + count);
  SparseRange<BFloat16> high(size), gradient(size);
  SparseRange<int16_t> low(size);
  SparseRange<float> m(size), v(size);
  const auto stream = [](auto& range) { return reinterpret_cast<std::byte*>(range.span().data()); };
  const StateSpan state{.size = begin + count,
                        .weight = high.span().data(),
                        .low = stream(low),
                        .first_moment = stream(m),
                        .second_moment = stream(v)};
  for (const BFloat16 one = to_bfloat16(1); BFloat16 & value : gradient.span().last(count)) value = one;
  update(state.subrange(begin, count), FloatView(gradient.span()).subrange(begin, count),
         make_adam_step({}, 1));
  EXPECT_EQ(m.span()[12345], 0);
  EXPECT_EQ(m.span()[size - count - 1], 0);
  for (const float value : m.span().last(count)) ASSERT_FLOAT_EQ(value, 0.1f);
}

}  // namespace
}  // namespace sluice::cpu_optim
