#include "cpu_optim/convert.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "apps/common/pool.h"
#include "tests/cpu_optim/huge_range.h"
#include "tests/cpu_optim/nasty_values.h"
#include "tests/cpu_optim/simd_targets_for_test.h"

namespace sluice::cpu_optim {
namespace {

// Nasty numbers, infinities and NaN of several payloads, then random bit patterns.
std::vector<float> any_floats(size_t size) {
  std::vector<float> values = nasty_finite();
  for (const uint32_t special :
       {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc12345u, 0x7f800001u, 0x7fffffffu}) {
    values.insert(values.begin(), std::bit_cast<float>(special));
  }
  std::mt19937 random(kSeed);
  while (values.size() < size) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  values.resize(size);
  return values;
}

// Runs convert over `offset` elements in, and compares with the scalar function, and that nothing else is
// written.
template <class To, class From, class Scalar>
void check_convert(const std::vector<From>& all, size_t size, size_t offset, const Scalar& scalar) {
  const auto from = std::span(all).subspan(offset, size);
  std::vector<To> result(size + offset + 8);
  convert(from, std::span(result).subspan(offset, size));
  for (size_t i = 0; i < size; ++i) {
    const To expected = scalar(from[i]);
    ASSERT_EQ(0, std::memcmp(&expected, &result[offset + i], sizeof(To)))
        << "element " << i << " of " << size;
  }
  const To zero{};
  for (size_t i = size + offset; i < result.size(); ++i)
    ASSERT_EQ(0, std::memcmp(&zero, &result[i], sizeof(To)));
}

TEST(Convert, EveryBf16AndFp16ToFp32) {
  std::vector<BFloat16> bf16(65536);
  std::vector<Float16> fp16(65536);
  for (size_t i = 0; i < 65536; ++i) bf16[i].bits = fp16[i].bits = static_cast<uint16_t>(i);
  for_each_target([&](int64_t) {
    check_convert<float>(bf16, 65536, 0, [](BFloat16 value) { return to_float(value); });
    check_convert<float>(fp16, 65536, 0, [](Float16 value) { return to_float(value); });
  });
}

TEST(Convert, Fp32ToHalvesHasTheScalarBits) {
  const std::vector<float> values = any_floats(100'000);
  for_each_target([&](int64_t) {
    check_convert<BFloat16>(values, values.size(), 0, [](float value) { return to_bfloat16(value); });
    check_convert<Float16>(values, values.size(), 0, [](float value) { return to_float16(value); });
  });
}

// Each fp16, and the midpoints between neighbours with the fp32 numbers next to them.
TEST(Convert, Fp16RoundsAtEveryMidpoint) {
  std::vector<float> values;
  for (uint16_t half = 0; half < 0x7c00; ++half) {
    const float low = to_float(Float16{half});
    const float high = half == 0x7bff ? 65536.0f : to_float(Float16{static_cast<uint16_t>(half + 1)});
    const uint32_t middle = bits((low + high) / 2);
    for (const uint32_t near : {bits(low), middle - 1, middle, middle + 1}) {
      values.push_back(std::bit_cast<float>(near));
      values.push_back(-values.back());
    }
  }
  for_each_target([&](int64_t) {
    check_convert<Float16>(values, values.size(), 0, [](float value) { return to_float16(value); });
  });
}

TEST(Convert, SizesAndMisalignment) {
  const std::vector<float> values = any_floats(5000);
  std::vector<BFloat16> bf16(values.size());
  std::vector<Float16> fp16(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bf16[i] = to_bfloat16(values[i]);
    fp16[i] = to_float16(values[i]);
  }
  for_each_target([&](int64_t) {
    for (const size_t size : sizes()) {
      for (const size_t offset : {0, 1, 7}) {
        check_convert<BFloat16>(values, size, offset, [](float value) { return to_bfloat16(value); });
        check_convert<Float16>(values, size, offset, [](float value) { return to_float16(value); });
        check_convert<float>(bf16, size, offset, [](BFloat16 value) { return to_float(value); });
        check_convert<float>(fp16, size, offset, [](Float16 value) { return to_float(value); });
      }
    }
  });
}

TEST(Convert, PoolGivesTheSameBits) {
  const std::vector<float> values = any_floats(2 * kPieceElements + 99);
  std::vector<BFloat16> one(values.size()), many(values.size());
  convert(values, one);
  convert(*make_pool(2), std::span<const float>(values), std::span(many));
  EXPECT_EQ(0, std::memcmp(one.data(), many.data(), one.size() * sizeof(BFloat16)));
}

TEST(SplitMasters, JoinRestoresEveryBit) {
  const std::vector<float> all = any_floats(5000);
  for_each_target([&](int64_t) {
    for (const size_t size : sizes()) {
      const auto masters = std::span(all).subspan(size % 5, size);
      std::vector<BFloat16> high(size);
      std::vector<int16_t> low(size);
      std::vector<float> joined(size);
      split_masters(masters, high, low);
      join_masters(high, low, joined);
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(high[i].bits, split(masters[i]).high.bits) << i;
        ASSERT_EQ(low[i], split(masters[i]).low) << i;
        ASSERT_EQ(bits(joined[i]), bits(masters[i])) << i;
      }
    }
  });
}

TEST(RoundToBf16, InPlaceAndOutOfPlace) {
  const std::vector<float> values = any_floats(4097);
  for_each_target([&](int64_t) {
    for (const size_t size : sizes()) {
      std::vector<float> in_place(values.begin(), values.begin() + static_cast<ptrdiff_t>(size)), apart(size);
      round_to_bf16(in_place, apart);
      round_to_bf16(in_place, in_place);
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(bits(in_place[i]), bits(to_float(to_bfloat16(values[i])))) << i;
        ASSERT_EQ(bits(apart[i]), bits(in_place[i])) << i;
      }
    }
  });
}

TEST(Add, SumsElementByElement) {
  const std::vector<float> values = nasty_mixture(4200, 1), start = nasty_mixture(4200, 2);
  for_each_target([&](int64_t) {
    for (const size_t size : sizes()) {
      std::vector<float> sums = start;
      add(std::span(values).subspan(1, size), std::span(sums).subspan(3, size));
      for (size_t i = 0; i < sums.size(); ++i) {
        const bool inside = i >= 3 && i < 3 + size;
        ASSERT_EQ(bits(sums[i]), bits(inside ? start[i] + values[i - 2] : start[i])) << i;
      }
    }
  });
}

TEST(Add, RowsInOrderWithRepeats) {
  const std::vector<float> values = {1, 2, 3, 4, 0x1p24f, 0};
  const std::vector<int32_t> rows = {2, 0, 2};
  std::vector<float> sums(6, 1.0f);
  add_rows(values, rows, 2, sums);
  EXPECT_EQ(sums, (std::vector<float>{4, 5, 1, 1, 0x1p24f + 2, 3}));  // (1 + 1) + 2^24
  add_rows({}, {}, 0, sums);
}

TEST(CountNonFinite, AtEveryPlace) {
  for_each_target([](int64_t) {
    for (const size_t size : sizes()) {
      std::vector<float> values(size, std::numeric_limits<float>::max());
      EXPECT_EQ(count_non_finite(values), 0);
      if (size > 100) continue;
      for (size_t place = 0; place < size; ++place) {
        values[place] = place % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                       : -std::numeric_limits<float>::infinity();
        EXPECT_EQ(count_non_finite(values), static_cast<int64_t>(place + 1));
        std::vector<BFloat16> narrow(size);
        std::transform(values.begin(), values.begin() + static_cast<ptrdiff_t>(place + 1), narrow.begin(),
                       [](float value) { return to_bfloat16(value); });
        EXPECT_EQ(count_non_finite(narrow), static_cast<int64_t>(place + 1));
      }
    }
  });
}

TEST(CountNonFinite, MoreThanInt32Elements) {
  const size_t periods = 2050;
  PeriodicRange<BFloat16> range(periods);
  range.period().back().bits = 0x7f80;
  EXPECT_EQ(count_non_finite(range.span()), static_cast<int64_t>(periods));
}

}  // namespace
}  // namespace sluice::cpu_optim
