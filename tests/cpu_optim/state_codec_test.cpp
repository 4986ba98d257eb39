#include "cpu_optim/state_codec.h"

#include <cmath>
#include <gtest/gtest.h>

#include "cpu_optim/reference/state.h"
#include "tests/cpu_optim/nasty_values.h"
#include "tests/cpu_optim/owned_state.h"

namespace sluice::cpu_optim {
namespace {

// Half a step of the format, relative: the error of rounding to nearest.
double relative_error(StateFormat format, bool moment) {
  if (!moment) return format == StateFormat::bf16 || format == StateFormat::int8 ? 0x1p-8 : 0;
  if (format == StateFormat::int8) return 0x1p-4;
  return format == StateFormat::bf16 || format == StateFormat::split_bf16 ? 0x1p-8 : 0;
}

TEST(StateCodec, NumbersComeBackToWithinHalfAStep) {
  for (const StateFormat format : kStateFormats) {
    SCOPED_TRACE(name(format));
    for (const size_t size : sizes()) {
      std::vector<float> w = nasty_mixture(size, 1), m = nasty_mixture(size, 2), v = nasty_mixture(size, 3);
      for (auto* values : {&w, &m, &v}) {
        // Of one magnitude, as a record of int8 reaches down by 2^18 only.
        for (float& value : *values) value = std::copysign(1 + std::abs(std::remainder(value, 1.0f)), value);
      }
      for (float& value : v) value = std::abs(value);
      OwnedState state(format, w, size % 3);
      encode({w, m, v}, state.span());
      const ReadState read(state.span());
      const reference::Numbers numbers = reference::decode(state.span());
      for (size_t i = 0; i < size; ++i) {
        EXPECT_NEAR(read.w[i], w[i], relative_error(format, false) * std::abs(w[i]));
        EXPECT_NEAR(read.m[i], m[i], relative_error(format, true) * std::abs(m[i]));
        EXPECT_NEAR(read.v[i], v[i], relative_error(format, true) * v[i]);
        EXPECT_EQ(read.w[i], numbers.w[i]);
        EXPECT_EQ(read.m[i], numbers.m[i]);
        EXPECT_NEAR(read.v[i], numbers.v[i], 0x1p-24 * numbers.v[i]);
      }
    }
  }
}

TEST(StateCodec, WhatWasReadIsWrittenBackAsItWas) {
  for (const StateFormat format : kStateFormats) {
    SCOPED_TRACE(name(format));
    std::vector<float> w = nasty_mixture(1000, 1), m = nasty_mixture(1000, 2), v = nasty_mixture(1000, 3);
    for (float& value : m) value = std::remainder(value, 1.0f);
    for (float& value : v) value = std::abs(std::remainder(value, 1.0f));
    OwnedState state(format, w), again(format, w);
    encode({w, m, v}, state.span());
    ReadState read(state.span());
    encode({read.w, read.m, read.v}, again.span());
    EXPECT_TRUE(bytes(again.span()) == bytes(state.span()));
  }
}

TEST(StateCodec, RecordOfANumberThatIsNotFiniteIsNaN) {
  std::vector<float> w(300, 1.0f), m(300, 1.0f), v(300, 1.0f);
  m[3] = std::numeric_limits<float>::infinity();
  OwnedState state(StateFormat::int8, w);
  encode({w, m, v}, state.span());
  const ReadState read(state.span());
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(read.m[i]), i < 256);
}

}  // namespace
}  // namespace sluice::cpu_optim
