#include "cpu_optim/rounding.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "cpu_optim/reference/state.h"
#include "tests/cpu_optim/nasty_values.h"

namespace sluice::cpu_optim {
namespace {

TEST(RoundStochastically, AgreesWithTheReference) {
  for (const float value : nasty_finite()) {
    for (const int draw : {-32768, -32767, -1, 0, 1, 32766, 32767}) {
      const auto drawn = static_cast<int16_t>(draw);
      EXPECT_EQ(to_float(round_stochastically(value, drawn)), reference::round_to_bf16(value, drawn))
          << value << ", draw " << draw;
    }
  }
}

TEST(RoundStochastically, MeanOverAllDrawsIsTheNumber) {
  for (const float value : {1.0f, 1.001f, -0.3f, 0x1.fffffep-1f, 0x1.23p-130f}) {
    double sum = 0;
    for (int draw = -32768; draw < 32768; ++draw) {
      sum += to_float(round_stochastically(value, static_cast<int16_t>(draw)));
    }
    EXPECT_EQ(sum / 65536, value);
  }
}

TEST(RoundStochastically, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int16_t draw : {int16_t{-32768}, int16_t{32767}}) {
    EXPECT_EQ(round_stochastically(std::numeric_limits<float>::max(), draw).bits, 0x7f7f);
    EXPECT_EQ(round_stochastically(-std::numeric_limits<float>::max(), draw).bits, 0xff7f);
    EXPECT_EQ(round_stochastically(infinity, draw).bits, 0x7f80);
    EXPECT_EQ(round_stochastically(-infinity, draw).bits, 0xff80);
    EXPECT_TRUE(std::isnan(to_float(round_stochastically(std::bit_cast<float>(0x7fffffffu), draw))));
    EXPECT_TRUE(std::isnan(to_float(round_stochastically(std::bit_cast<float>(0xffc0ffffu), draw))));
    EXPECT_EQ(round_stochastically(-0.0f, draw).bits, 0x8000);
  }
}

TEST(Codes, AllCodesRoundTrip) {
  const float unit = 0x1p-20f;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float first = decode_first_moment(byte, unit), second = decode_second_moment(byte, unit);
    for (const int16_t draw : {int16_t{-32768}, int16_t{0}, int16_t{32767}}) {
      EXPECT_EQ(encode_first_moment(first, 1 / unit, draw), code);
      // Beyond 2^24 units the sum with 15/16 is rounded, to below the code.
      if (code < 192) {
        EXPECT_EQ(encode_second_moment(second, 1 / unit, draw), code);
      }
    }
    EXPECT_EQ(encode_second_moment(second, 1 / unit, 0), code);
    EXPECT_EQ(std::abs(first), reference::decode(code % 128, unit, 1));
    EXPECT_EQ(second, static_cast<float>(reference::decode(code, unit, 0.9375)));
  }
}

TEST(Codes, MeanOverAllDrawsIsTheNumber) {
  for (const float value : {0.0f, 0.01f, 0.13f, 0.9f, 1.0f, 3.7f, 1000.3f, 60000.0f}) {
    double first = 0, second = 0;
    for (int draw = -32768; draw < 32768; ++draw) {
      const auto drawn = static_cast<int16_t>(draw);
      first += decode_first_moment(encode_first_moment(-value, 1, drawn), 1);
      second += decode_second_moment(encode_second_moment(value, 1, drawn), 1);
    }
    // 2^-16 of a step, which is at most 1/8 of value + 1.
    EXPECT_NEAR(first / 65536, -value, 0x1p-19 * (value + 1));
    EXPECT_NEAR(second / 65536, std::max(value, 0.0625f), 0x1p-19 * (value + 1));
  }
}

TEST(RecordUnit, LeastPowerOfTwoThatHoldsTheLargest) {
  for (const int octaves : {kFirstMomentOctaves, kSecondMomentOctaves}) {
    for (const float largest : {1.0f, 1.87f, 1.875f, 1.9f, 0x1.fffffep0f, 1e-20f, 1e30f, 0x1p-126f, 1e-40f}) {
      const std::vector<double> record = {largest};
      const float unit = record_unit(bits(largest), octaves);
      EXPECT_EQ(unit, reference::unit_of(record, octaves)) << largest;
      const double top = (std::ldexp(1.875, octaves) - 1) * unit;
      EXPECT_LE(largest, top);
      EXPECT_TRUE(unit == 0x1p-100f || largest > top / 2.01) << largest;
    }
    EXPECT_EQ(record_unit(0, octaves), 0);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(), NAN}) {
      EXPECT_TRUE(std::isnan(record_unit(bits(bad), octaves)));
      EXPECT_TRUE(std::isnan(reference::unit_of(std::vector<double>{bad}, octaves)));
    }
  }
}

}  // namespace
}  // namespace sluice::cpu_optim
