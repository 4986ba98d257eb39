#include "engine/base/float_bits.h"

#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

namespace sluice {
namespace {

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}
float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// All 2^16 lower halves for some upper ones, and all upper halves with the lower ones where roundings turn.
template <class Visit>
void for_all_patterns(const Visit& visit) {
  constexpr std::array<uint32_t, 12> kLows{0,      1,      2,      0x7ffe, 0x7fff, 0x8000,
                                           0x8001, 0x8002, 0xaaaa, 0xfffe, 0xffff, 0x4000};
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (const uint32_t low : kLows) visit(high << 16 | low);
  }
  for (const uint32_t high : {0x0000u, 0x0001u, 0x007fu, 0x0080u, 0x3f7fu, 0x3f80u, 0x4049u, 0x7f7fu, 0x7f80u,
                              0x7fc0u, 0x7fffu, 0x8000u, 0x8001u, 0xbf80u, 0xff7fu, 0xff80u, 0xffffu}) {
    for (uint32_t low = 0; low < 0x10000; ++low) visit(high << 16 | low);
  }
}

TEST(BFloat16Bits, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    ASSERT_EQ(bits_of(wide), bits << 16);
    // A signalling NaN becomes quiet.
    const uint32_t expected = std::isnan(wide) ? bits | 0x40 : bits;
    ASSERT_EQ(to_bfloat16(wide).bits, expected) << bits;
  }
}

// The neighbours below and above in magnitude, and which is nearer, in exact double arithmetic.
uint16_t nearest_bfloat16(float value) {
  const uint32_t sign = bits_of(value) & 0x80000000;
  const uint32_t below = (bits_of(value) & 0x7fff0000) >> 16;
  const double magnitude = std::abs(static_cast<double>(value));
  const double low = static_cast<double>(float_of(below << 16));
  // Above the largest finite bf16 comes what would be next: 2^128.
  const double high = below == 0x7f7f ? 0x1p128 : static_cast<double>(float_of((below + 1) << 16));
  const double to_low = magnitude - low, to_high = high - magnitude;
  const bool up = to_high < to_low || (to_high == to_low && (below & 1) == 1);
  return static_cast<uint16_t>(sign >> 16 | (below + (up ? 1 : 0)));
}

TEST(BFloat16Bits, RoundsToNearestTiesToEven) {
  for_all_patterns([](uint32_t bits) {
    const float value = float_of(bits);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(to_float(to_bfloat16(value)))) << std::hex << bits;
    } else if (std::isinf(value)) {
      ASSERT_EQ(to_bfloat16(value).bits, bits >> 16);
    } else {
      ASSERT_EQ(to_bfloat16(value).bits, nearest_bfloat16(value)) << std::hex << bits;
    }
  });
}

// What a half means, by its definition in IEEE 754.
double value_of_half(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1f);
  const double mantissa = static_cast<double>(bits & 0x3ff);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Float16Bits, EveryValueIsWhatIeeeSays) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    if ((bits & 0x7c00) == 0x7c00) {
      ASSERT_EQ(std::isinf(value), (bits & 0x3ff) == 0);
      ASSERT_EQ(std::isnan(value), (bits & 0x3ff) != 0);
      if (std::isnan(value)) continue;
    } else {
      ASSERT_EQ(static_cast<double>(value), value_of_half(bits)) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    ASSERT_EQ(to_float16(value).bits, bits);
  }
}

TEST(Float16Bits, RoundsToNearestTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = value_of_half(bits);
    const double high = bits + 1 == 0x7c00 ? 65536.0 : value_of_half(bits + 1);
    const float tie = static_cast<float>((low + high) / 2);  // exact: one bit more than a half
    ASSERT_EQ(static_cast<double>(tie), (low + high) / 2);
    ASSERT_EQ(to_float16(tie).bits, bits + (bits & 1)) << bits;
    ASSERT_EQ(to_float16(std::nextafter(tie, 0.0F)).bits, bits) << bits;
    ASSERT_EQ(to_float16(std::nextafter(tie, 1e9F)).bits, bits + 1) << bits;
    ASSERT_EQ(to_float16(-tie).bits, 0x8000 | (bits + (bits & 1))) << bits;
  }
  EXPECT_EQ(to_float16(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(to_float16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_TRUE(std::isnan(to_float(to_float16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(SplitBits, JoinRestoresEveryPattern) {
  for_all_patterns([](uint32_t bits) {
    const SplitFloat halves = split(float_of(bits));
    ASSERT_EQ(bits_of(join(halves.high, halves.low)), bits) << std::hex << bits;
  });
}

TEST(SplitBits, HighIsTheNearestBfloat16WithTiesUp) {
  for_all_patterns([](uint32_t bits) {
    if (!std::isfinite(float_of(bits))) return;
    const SplitFloat halves = split(float_of(bits));
    const bool is_tie = (bits & 0xffff) == 0x8000;
    const uint32_t expected = is_tie ? (bits >> 16) + 1 : nearest_bfloat16(float_of(bits));
    ASSERT_EQ(halves.high.bits, expected) << std::hex << bits;
    if (is_tie) {
      ASSERT_EQ(halves.low, -32768);
    }
  });
}

TEST(SplitBits, ByHand) {
  EXPECT_EQ(split(1.0F).high.bits, 0x3f80);
  EXPECT_EQ(split(1.0F).low, 0);
  EXPECT_EQ(split(float_of(0x3f807fff)).high.bits, 0x3f80);
  EXPECT_EQ(split(float_of(0x3f807fff)).low, 32767);
  EXPECT_EQ(split(float_of(0x3f808001)).high.bits, 0x3f81);
  EXPECT_EQ(split(float_of(0x3f808001)).low, -32767);
  EXPECT_EQ(split(std::numeric_limits<float>::max()).high.bits, 0x7f80) << "reads as infinity, joins exactly";
  EXPECT_EQ(bits_of(join({0x3f80}, -1)), 0x3f7fffffu);
}

}  // namespace
}  // namespace sluice
