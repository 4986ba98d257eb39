#include "cpu_optim/rounding.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "cpu_optim/reference/state.h"
#include "tests/cpu_optim/nasty_values.h"

namespace sluice::cpu_optim {
namespace {

constexpr uint32_t kHighestBf16Draw = 0xffff, kHighestCodeDraw = 0xfffff;

TEST(RoundStochastically, AgreesWithTheReference) {
  for (const float value : nasty_finite()) {
    for (const uint32_t draw : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) {
      EXPECT_EQ(to_float(round_stochastically(value, draw)),
                static_cast<float>(reference::round_to_bf16(value, draw * 0x1p-16)))
          << value << ", draw " << draw;
    }
  }
}

TEST(RoundStochastically, MeanOverAllDrawsIsTheNumber) {
  for (const float value : {1.0f, 1.001f, -0.3f, 0x1.fffffep-1f, 0x1.23p-130f}) {
    double sum = 0;
    for (uint32_t draw = 0; draw <= kHighestBf16Draw; ++draw)
      sum += to_float(round_stochastically(value, draw));
    EXPECT_EQ(sum / 65536, value);
  }
}

TEST(RoundStochastically, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  EXPECT_EQ(round_stochastically(largest, 0).bits, 0x7f7f);
  EXPECT_EQ(round_stochastically(-largest, 0).bits, 0xff7f);
  EXPECT_EQ(round_stochastically(largest, kHighestBf16Draw).bits, 0x7f80);  // infinity
  for (const uint32_t draw : {0u, kHighestBf16Draw}) {
    EXPECT_EQ(round_stochastically(infinity, draw).bits, 0x7f80);
    EXPECT_EQ(round_stochastically(-infinity, draw).bits, 0xff80);
    EXPECT_EQ(round_stochastically(std::bit_cast<float>(0x7fff0000u), draw).bits, 0x7fff);
    EXPECT_EQ(round_stochastically(-0.0f, draw).bits, 0x8000);
    EXPECT_EQ(round_stochastically(to_float(BFloat16{0x7f7f}), draw).bits, 0x7f7f);
  }
}

TEST(Codes, AllCodesRoundTrip) {
  const float unit = 0x1p-20f;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float first = decode_first_moment(byte, unit), second = decode_second_moment(byte, unit);
    for (const uint32_t draw : {0u, kNearestCode, kHighestCodeDraw}) {
      EXPECT_EQ(encode_first_moment(first, twice_inverse(unit), draw), code);
      EXPECT_EQ(encode_second_moment(second, twice_inverse(unit), draw), code);
    }
    EXPECT_EQ(std::abs(first), reference::decode(code % 128, unit, 1));
    EXPECT_EQ(second, static_cast<float>(reference::decode(code, unit, 0)));
  }
}

TEST(Codes, MeanOverAllDrawsIsTheNumber) {
  for (const float value : {0.0f, 0.01f, 0.13f, 0.9f, 1.0f, 3.7f, 1000.3f, 60000.0f}) {
    double first = 0, second = 0;
    for (uint32_t draw = 0; draw <= kHighestCodeDraw; ++draw) {
      first += decode_first_moment(encode_first_moment(-value, twice_inverse(1), draw), 1);
      second += decode_second_moment(encode_second_moment(value, twice_inverse(1), draw), 1);
    }
    // The sum with the offset is rounded once, to within 2^-24.
    EXPECT_NEAR(first / 0x1p20, -value, 0x1p-23 * (value + 1));
    EXPECT_NEAR(second / 0x1p20, std::max(value, 1.0f), 0x1p-23 * (value + 1));
  }
}

TEST(CodeIndex, IsAPermutationThatKeepsPairsOfALane) {
  std::vector<bool> seen(kInt8Block);
  for (int64_t i = 0; i < kInt8Block; ++i) {
    const auto at = static_cast<size_t>(code_index(i));
    EXPECT_FALSE(seen.at(at));
    seen.at(at) = true;
    if (i % 2 == 0) {
      EXPECT_EQ(code_index(i + 1), code_index(i) + 2);
      EXPECT_EQ(code_index(i) / 4, code_index(i + 1) / 4);
    }
  }
}

TEST(RecordUnit, LeastThatHoldsTheLargest) {
  for (const int octaves : {kFirstMomentOctaves, kSecondMomentOctaves}) {
    const bool first = octaves == kFirstMomentOctaves;
    const auto unit_of = first ? first_moment_unit : second_moment_unit;
    for (const float largest :
         {0.0f, 1.0f, 1.87f, 1.875f, 1.9f, 0x1.fffffep0f, 3.0f, 1e-20f, 1e30f, 0x1p-126f, 1e-40f}) {
      const float unit = unit_of(largest);
      EXPECT_EQ(unit, reference::unit_of(largest, octaves)) << largest;
      const double top = (std::ldexp(1.875, octaves) - (first ? 1 : 0)) * unit;
      EXPECT_LE(largest, top);
      EXPECT_TRUE(unit == 0x1p-99f || largest > top / (first ? 2.01 : 4.01)) << largest;
      EXPECT_EQ(twice_inverse(unit), 2 / unit);
      if (!first) {
        EXPECT_EQ(inverse_root_of_half(unit), 1 / std::sqrt(unit / 2));
      }
    }
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(), NAN}) {
      EXPECT_TRUE(std::isnan(unit_of(bad)));
      EXPECT_TRUE(std::isnan(reference::unit_of(bad, octaves)));
    }
  }
}

}  // namespace
}  // namespace sluice::cpu_optim
