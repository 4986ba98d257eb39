// The formats whose numbers are rounded by draws: split_bf16, bf16, int8.
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>

#include "apps/common/pool.h"
#include "cpu_optim/adamw.h"
#include "cpu_optim/pieces.h"
#include "cpu_optim/random.h"
#include "cpu_optim/reference/state.h"
#include "cpu_optim/rounded_step.h"
#include "tests/cpu_optim/huge_range.h"
#include "tests/cpu_optim/nasty_values.h"
#include "tests/cpu_optim/owned_state.h"
#include "tests/cpu_optim/simd_targets_for_test.h"

namespace sluice::cpu_optim {
namespace {

constexpr StateFormat kRoundedFormats[] = {StateFormat::split_bf16, StateFormat::bf16, StateFormat::int8};
constexpr uint64_t kRunSeed = 42;

// Of each element what rounded_adam makes of it.
ReadState rounded_step_of(ReadState numbers, FloatView gradient, const RoundedStep& step) {
  for (size_t i = 0; i < numbers.w.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const float g = gradient.dtype() == DType::bf16 ? to_float(gradient.bf16()[at]) : gradient.fp32()[at];
    const RoundedElement next = rounded_adam({numbers.w[i], numbers.m[i], numbers.v[i]}, g, step);
    numbers.w[i] = next.w, numbers.m[i] = next.m, numbers.v[i] = next.v;
  }
  return numbers;
}

BFloat16 narrow(double value, uint32_t draw) {
  return to_bfloat16(static_cast<float>(reference::round_to_bf16(value, draw * 0x1p-16)));
}

// A step by the definitions: rounded_adam, then the roundings of the reference.
void model_bf16_step(const StateSpan& state, FloatView gradient, const AdamStep& step) {
  const ReadState next = rounded_step_of(ReadState(state), gradient, rounded_step(step));
  for (size_t i = 0; i < next.w.size(); ++i) {
    const Draws drawn = draws(step.random_key, state.first_element + i);
    if (state.format == StateFormat::split_bf16) {
      const SplitFloat halves = split(next.w[i]);
      state.weight[i] = halves.high;
      reinterpret_cast<int16_t*>(state.low)[i] = halves.low;
    } else {
      state.weight[i] = narrow(next.w[i], drawn.weight16());
    }
    reinterpret_cast<BFloat16*>(state.first_moment)[i] = narrow(next.m[i], drawn.first16());
    reinterpret_cast<BFloat16*>(state.second_moment)[i] = narrow(next.v[i], drawn.second16());
  }
}

// NaN if one is.
float largest(std::span<const float> values) {
  uint32_t result = 0;
  for (const float value : values) result = std::max(result, bits(std::abs(value)));
  return std::bit_cast<float>(result);
}

// Of a value in half units. As fp32 would: the sum with the offset is rounded.
int code_of(float value, double offset, uint32_t draw) {
  const float shifted = value + static_cast<float>(2 * offset);
  return reference::encode(shifted / 2 - offset, 1, offset, draw * 0x1p-20);
}

// Of one record.
void model_int8_step(const StateSpan& state, FloatView gradient, const AdamStep& adam) {
  const RoundedStep step = rounded_step(adam, kNoiseOfRoot);
  ReadState old(state);
  std::vector<float> g;
  for (int64_t i = 0; i < state.size; ++i) {
    g.push_back(gradient.dtype() == DType::bf16 ? to_float(gradient.bf16()[i]) : gradient.fp32()[i]);
  }
  const float g_bound = gradient_bound(largest(g), largest(old.w), step);
  const RecordUnits units = next_units(g_bound, largest(old.m), largest(old.v), step);
  RecordUnits old_units{};
  std::memcpy(&old_units.first, state.first_moment + kInt8Block, sizeof(float));
  std::memcpy(&old_units.second, state.second_moment + kInt8Block, sizeof(float));
  std::memcpy(state.first_moment + kInt8Block, &units.first, sizeof(float));
  std::memcpy(state.second_moment + kInt8Block, &units.second, sizeof(float));
  for (float& value : old.m) value = old_units.first == 0 ? 0 : value / (old_units.first / 2);
  for (float& value : old.v) value = old_units.second == 0 ? 0 : value / (old_units.second / 2);
  const ReadState next = rounded_step_of(old, gradient, in_half_units(step, old_units, units));
  const bool poisoned = std::isnan(units.first) || std::isnan(units.second);
  for (size_t i = 0; i < old.w.size(); ++i) {
    const Draws drawn = record_draws(adam.random_key, state.first_element + i);
    const auto at = static_cast<size_t>(code_index(static_cast<int64_t>(i)));
    int m = 0, v = 0;
    if (!poisoned) {
      m = code_of(std::abs(next.m[i]), 1, drawn.first20());
      m += std::signbit(next.m[i]) ? 128 : 0;
      v = code_of(next.v[i], 0, drawn.second20());
    }
    state.first_moment[at] = static_cast<std::byte>(m);
    state.second_moment[at] = static_cast<std::byte>(v);
    state.weight[i] = poisoned ? BFloat16{0x7fc0} : narrow(next.w[i], drawn.weight16());
  }
}

void model_step(const StateSpan& state, FloatView gradient, const AdamStep& step) {
  if (state.format != StateFormat::int8) return model_bf16_step(state, gradient, step);
  for (int64_t begin = 0; begin < state.size; begin += kInt8Block) {
    const int64_t count = std::min(kInt8Block, state.size - begin);
    model_int8_step(state.subrange(begin, count), gradient.subrange(begin, count), step);
  }
}

TEST(RoundedFormats, BitsAreThoseOfTheModel) {
  for_each_target([](int64_t) {
    for (const StateFormat format : kRoundedFormats) {
      SCOPED_TRACE(name(format));
      for (const size_t size : sizes()) {
        const uint64_t first = format == StateFormat::int8 ? 512 : 512 + size % 3;
        OwnedState state(format, nasty_mixture(size), size % 5, first);
        OwnedState model(format, nasty_mixture(size), 0, first);
        for (int64_t step = 1; step <= 4; ++step) {
          const std::vector<float> wide = gradient_of_step(size, step);
          const std::vector<BFloat16> narrow = as_bf16(wide);
          const FloatView gradient = step % 2 == 0 ? FloatView(wide) : FloatView(narrow);
          const AdamOptions options{.learning_rate = 3e-2,
                                    .variant = step == 3 ? AdamVariant::adam : AdamVariant::adamw};
          const AdamStep adam = make_adam_step(options, step, 0.7f, kRunSeed);
          update(state.span(), gradient, adam);
          model_step(model.span(), gradient, adam);
          ASSERT_TRUE(bytes(state.span()) == bytes(model.span())) << size << " elements, step " << step;
        }
      }
    }
  });
}

// The oracle in double rounds otherwise only where a draw is as near to a number's remainder as fp32's error.
TEST(RoundedFormats, OracleRoundsAlmostAllNumbersTheSame) {
  const size_t size = 4097;
  std::vector<float> weights = nasty_mixture(size);
  for (float& weight : weights) weight = std::remainder(weight, 4.0f);
  for (const StateFormat format : kRoundedFormats) {
    SCOPED_TRACE(name(format));
    OwnedState state(format, weights);
    int64_t different = 0;
    const int64_t steps = 20;
    for (int64_t step = 1; step <= steps; ++step) {
      const std::vector<float> gradient = gradient_of_step(size, step);
      OwnedState oracle = state;
      reference::update(oracle.span(), std::vector<double>(gradient.begin(), gradient.end()), {}, step, 0.5,
                        kRunSeed);
      update(state.span(), gradient, make_adam_step({}, step, 0.5f, kRunSeed));
      const ReadState ours(state.span()), theirs(oracle.span());
      for (size_t i = 0; i < size; ++i) {
        different += ours.w[i] != theirs.w[i] && std::abs(ours.w[i] - theirs.w[i]) > 1e-6f ? 1 : 0;
        different += ours.m[i] != theirs.m[i] ? 1 : 0;
        different += ours.v[i] != theirs.v[i] ? 1 : 0;
        const float unit = std::abs(theirs.m[i]) / 4 + std::numeric_limits<float>::min();
        const float quantum = format == StateFormat::int8 ? std::numeric_limits<float>::max() : unit;
        ASSERT_LE(std::abs(ours.m[i] - theirs.m[i]), quantum) << i;
      }
    }
    EXPECT_LE(different, 3 * steps * static_cast<int64_t>(size) / 500);
  }
}

TEST(RoundedFormats, AllTargetsGiveTheSameBits) {
  for (const StateFormat format : kRoundedFormats) {
    SCOPED_TRACE(name(format));
    std::string first;
    for_each_target([&](int64_t) {
      OwnedState state(format, nasty_mixture(4097), 3);
      for (int64_t step = 1; step <= 20; ++step) {
        update(state.span(), gradient_of_step(4097, step), make_adam_step({}, step, 0.7f, kRunSeed));
      }
      if (first.empty()) first = bytes(state.span());
      EXPECT_TRUE(bytes(state.span()) == first);
    });
  }
}

TEST(RoundedFormats, ChunksAlignmentAndThreadsDoNotChangeBits) {
  const size_t size = 3 * kPieceElements + 777;
  const std::vector<float> weights = nasty_mixture(size);
  const std::vector<BFloat16> gradient = as_bf16(gradient_of_step(size, 1));
  const AdamStep adam = make_adam_step({}, 5, 0.9f, kRunSeed);
  for (const StateFormat format : kRoundedFormats) {
    SCOPED_TRACE(name(format));
    OwnedState whole(format, weights);
    update(whole.span(), gradient, adam);
    const std::string expected = bytes(whole.span());
    for (int64_t chunk : {7, 255, 1000, 65537}) {
      if (format == StateFormat::int8) chunk = (chunk + 255) / 256 * 256;
      OwnedState state(format, weights, static_cast<size_t>(chunk % 13));
      for (int64_t begin = 0; begin < static_cast<int64_t>(size); begin += chunk) {
        const int64_t count = std::min(chunk, static_cast<int64_t>(size) - begin);
        update(state.span().subrange(begin, count), FloatView(gradient).subrange(begin, count), adam);
      }
      EXPECT_TRUE(bytes(state.span()) == expected) << "chunks of " << chunk;
    }
    for (const int threads : {1, 2, 3}) {
      OwnedState state(format, weights);
      update(*make_pool(threads), state.span(), gradient, adam);
      EXPECT_TRUE(bytes(state.span()) == expected) << threads << " threads";
    }
  }
}

TEST(RoundedFormats, SeedStepAndElementChangeTheDraws) {
  const std::vector<float> weights(1000, 1.0f), gradient(1000, 0.3f);
  const auto result = [&](int64_t step, uint64_t seed, uint64_t first) {
    OwnedState state(StateFormat::bf16, weights, 0, first);
    update(state.span(), gradient, make_adam_step({.learning_rate = 1e-4}, step, 1, seed));
    return bytes(state.span());
  };
  EXPECT_TRUE(result(2, 1, 0) == result(2, 1, 0));
  EXPECT_FALSE(result(2, 1, 0) == result(2, 2, 0));
  EXPECT_FALSE(result(2, 1, 0) == result(2, 1, 1000));
  EXPECT_FALSE(result(2, 1, 0) == result(2, 1, kKeyedElements));
}

TEST(RoundedFormats, LeavesElementsOutsideTheRangeAlone) {
  for_each_target([](int64_t) {
    for (const StateFormat format : kRoundedFormats) {
      for (const size_t size : sizes()) {
        const int64_t lead = format == StateFormat::int8 ? 256 : 9;
        const int64_t end = format == StateFormat::int8
                                ? lead + static_cast<int64_t>((size + 255) / 256 * 256)
                                : lead + static_cast<int64_t>(size);
        OwnedState state(format, nasty_mixture(static_cast<size_t>(end + 8)));
        OwnedState untouched = state;
        const std::vector<float> gradient(size, 1.0f);
        update(state.span().subrange(lead, static_cast<int64_t>(size)), gradient, make_adam_step({}, 1));
        for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, lead}, {end, 8}}) {
          EXPECT_TRUE(bytes(state.span().subrange(begin, count)) ==
                      bytes(untouched.span().subrange(begin, count)));
        }
      }
    }
  });
}

// Rounded to nearest it would not move: 1e-5 is far below half its unit of 2^-8 (torchao issue 1124).
TEST(RoundedFormats, ThousandSmallUpdatesMoveAWeightOfOne) {
  for (const StateFormat format : kRoundedFormats) {
    SCOPED_TRACE(name(format));
    const size_t size = 4096;
    OwnedState state(format, std::vector<float>(size, 1.0f));
    const std::vector<BFloat16> gradient(size, to_bfloat16(1.0f));
    for (int64_t step = 1; step <= 1000; ++step) {
      update(state.span(), gradient,
             make_adam_step({.learning_rate = 1e-5, .weight_decay = 0}, step, 1, kRunSeed));
    }
    double mean = 0;
    for (const float weight : ReadState(state.span()).w) mean += weight / static_cast<double>(size);
    // A weight's variance: 1000 draws of a step of 2^-8 with p = 1e-5 * 2^8; 5 standard errors of the mean,
    // and 2 % of the move for the noise of the second moment, which enters by the inverse of its root.
    const double variance = 1000 * 0x1p-16 * (1e-5 * 0x1p8);
    EXPECT_NEAR(mean, 0.99, 5 * std::sqrt(variance / static_cast<double>(size)) + 2e-4);
  }
}

// The mean of many elements follows fp32, whatever the format rounds.
TEST(RoundedFormats, MomentsAreUnbiased) {
  const size_t size = 65536;
  std::vector<float> gradient(size);
  for (size_t i = 0; i < size; ++i)
    gradient[i] = i % 256 == 0 ? 1.0f : 0.011f;  // far below its record's largest
  for (const StateFormat format : kRoundedFormats) {
    SCOPED_TRACE(name(format));
    OwnedState state(format, std::vector<float>(size, 0.5f)),
        oracle(StateFormat::fp32, std::vector<float>(size, 0.5f));
    for (int64_t step = 1; step <= 50; ++step) {
      const float scale = step % 3 == 0 ? -0.5f : 1.0f;
      update(state.span(), gradient, make_adam_step({}, step, scale, kRunSeed));
      update(oracle.span(), gradient, make_adam_step({}, step, scale, kRunSeed));
    }
    const ReadState ours(state.span()), exact(oracle.span());
    double m = 0, v = 0, exact_m = 0, exact_v = 0;
    for (size_t i = 0; i < size; ++i) {
      if (i % 256 == 0) continue;
      m += ours.m[i], v += ours.v[i], exact_m += exact.m[i], exact_v += exact.v[i];
    }
    EXPECT_NEAR(m / exact_m, 1, 2e-3);
    EXPECT_NEAR(v / exact_v, 1, 2e-3);
  }
}

// Computing in units of a record changes no bit of the weights: they are those of fp32 numbers.
TEST(Int8, UnitsDoNotEnterTheArithmetic) {
  const size_t size = 2048;
  std::vector<float> weights = nasty_mixture(size);
  for (float& weight : weights) weight = std::remainder(weight, 1.0f);
  OwnedState state(StateFormat::int8, weights);
  for (int64_t step = 1; step <= 20; ++step) {
    std::vector<float> gradient = gradient_of_step(size, step);
    for (float& value : gradient)
      value = 0.125f * (1 + std::abs(std::remainder(value, 1.0f))) * (value < 0 ? -1 : 1);
    const AdamStep adam = make_adam_step({.learning_rate = 1e-2}, step, 0.3f, kRunSeed);
    const ReadState exact =
        rounded_step_of(ReadState(state.span()), gradient, rounded_step(adam, kNoiseOfRoot));
    update(state.span(), gradient, adam);
    for (size_t i = 0; i < size; ++i) {
      const Draws drawn = record_draws(adam.random_key, i);
      ASSERT_EQ(state.span().weight[i].bits, round_stochastically(exact.w[i], drawn.weight16()).bits) << i;
    }
  }
}

TEST(Int8, PaddingStaysZeroAndTheLastRecordIsWhole) {
  for_each_target([](int64_t) {
    const size_t size = 300;
    OwnedState state(StateFormat::int8, std::vector<float>(size, 1.0f));
    for (int64_t step = 1; step <= 5; ++step) {
      update(state.span(), gradient_of_step(size, step), make_adam_step({}, step, 1, kRunSeed));
    }
    for (const std::byte* moment : {state.span().first_moment, state.span().second_moment}) {
      const std::byte* last = moment + kInt8RecordBytes;
      for (int64_t i = size - 256; i < 256; ++i) EXPECT_EQ(last[code_index(i)], std::byte{0}) << i;
      float unit = 0;
      std::memcpy(&unit, last + kInt8Block, sizeof unit);
      EXPECT_GT(unit, 0);
    }
  });
}

// One element of a record has a gradient 2^40 times that of the others, which so fall below the least code.
TEST(Int8, ASecondMomentDoesNotBecomeZero) {
  std::vector<float> gradient(256, 0x1p-30f);
  gradient[0] = 0x1p10f;
  OwnedState state(StateFormat::int8, std::vector<float>(256, 1.0f));
  const double learning_rate = 0x1p-6;
  std::vector<float> before = ReadState(state.span()).w;
  for (int64_t step = 1; step <= 100; ++step) {
    update(state.span(), gradient,
           make_adam_step({.learning_rate = learning_rate, .weight_decay = 0}, step, 1, kRunSeed));
    const ReadState now(state.span());
    for (size_t i = 0; i < 256; ++i) {
      ASSERT_GT(now.v[i], 0);
      ASSERT_LE(std::abs(now.w[i] - before[i]), 4 * learning_rate) << "element " << i << ", step " << step;
    }
    before = now.w;
  }
}

TEST(Int8, NonFiniteGradientTurnsItsRecordToNaN) {
  for_each_target([](int64_t) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity(), 3e38f}) {
      std::vector<float> gradient(768, 0.5f);
      OwnedState state(StateFormat::int8, std::vector<float>(768, 1.0f));
      gradient[300] = bad;
      update(state.span(), gradient, make_adam_step({}, 1));
      const ReadState read(state.span());
      for (size_t i = 0; i < 768; ++i) EXPECT_EQ(std::isnan(read.w[i]), i / 256 == 1) << i;
    }
  });
}

TEST(Bf16, NonFiniteNumbersStayInTheirElement) {
  for_each_target([](int64_t) {
    for (const StateFormat format : {StateFormat::split_bf16, StateFormat::bf16}) {
      // The second is CUDA's NaN; a draw added to its bits would make it 0.
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::bit_cast<float>(0x7fffffffu), -NAN}) {
        std::vector<float> gradient(100, 0.5f);
        OwnedState state(format, std::vector<float>(100, 1.0f)), clean = state;
        update(clean.span(), gradient, make_adam_step({}, 1));
        gradient[17] = bad;
        update(state.span(), gradient, make_adam_step({}, 1));
        const ReadState read(state.span()), expected(clean.span());
        for (size_t i = 0; i < 100; ++i) {
          if (i == 17) {
            EXPECT_FALSE(std::isfinite(read.m[i]));
            EXPECT_FALSE(std::isfinite(read.v[i]));
          } else {
            EXPECT_EQ(bits(read.w[i]), bits(expected.w[i]));
            EXPECT_EQ(bits(read.m[i]), bits(expected.m[i]));
          }
        }
      }
    }
  });
}

TEST(RoundedFormats, RangeAcrossTheKeysOfCounters) {
  const size_t size = 1024;
  const std::vector<float> weights = nasty_mixture(size), gradient = gradient_of_step(size, 1);
  const AdamStep adam = make_adam_step({}, 2, 1, kRunSeed);
  for (const StateFormat format : kRoundedFormats) {
    OwnedState state(format, weights, 0, 7 * kKeyedElements - 512);
    OwnedState model(format, weights, 0, 7 * kKeyedElements - 512);
    update(state.span(), gradient, adam);
    model_step(model.span(), gradient, adam);
    EXPECT_TRUE(bytes(state.span()) == bytes(model.span())) << name(format);
  }
}

TEST(Int8, IndicesBeyondInt32) {
  const int64_t begin = (int64_t{1} << 32) + 256 * 48;
  const int64_t count = 512;
  const auto size = static_cast<size_t>(begin + count);
  SparseRange<BFloat16> weight(size), gradient(size);
  SparseRange<std::byte> m(moment_bytes(StateFormat::int8, begin + count)),
      v(moment_bytes(StateFormat::int8, begin + count));
  const StateSpan state{.format = StateFormat::int8,
                        .size = begin + count,
                        .weight = weight.span().data(),
                        .first_moment = m.span().data(),
                        .second_moment = v.span().data()};
  for (const BFloat16 one = to_bfloat16(1); BFloat16 & value : gradient.span().last(count)) value = one;
  update(state.subrange(begin, count), FloatView(gradient.span()).subrange(begin, count),
         make_adam_step({}, 1));
  EXPECT_EQ(m.span()[48 * kInt8RecordBytes], std::byte{0});
  for (const float value : ReadState(state.subrange(begin, count)).m) ASSERT_NEAR(value, 0.1, 0.1 / 8);
}

}  // namespace
}  // namespace sluice::cpu_optim
