#include "cpu_optim/norm.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "apps/common/pool.h"
#include "tests/cpu_optim/huge_range.h"
#include "tests/cpu_optim/nasty_values.h"
#include "tests/cpu_optim/simd_targets_for_test.h"

namespace sluice::cpu_optim {
namespace {

// The order that norm.h promises, as plainly as possible.
double sum_in_order(std::span<const float> values) {
  std::vector<double> sums(32);
  for (size_t i = 0; i < values.size(); ++i) sums[i % 32] += double{values[i]} * double{values[i]};
  for (size_t width = 16; width > 0; width /= 2) {
    for (size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return sums[0];
}

std::vector<BFloat16> rounded(std::span<const float> values) {
  std::vector<BFloat16> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = to_bfloat16(values[i]);
  return result;
}

std::vector<float> widened(std::span<const BFloat16> values) {
  std::vector<float> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = to_float(values[i]);
  return result;
}

TEST(SumOfSquares, HasTheBitsOfThePromisedOrder) {
  for_each_target([](int64_t) {
    for (const size_t size : sizes()) {
      for (const size_t offset : {0, 1, 3}) {
        const std::vector<float> values = nasty_mixture(size + offset);
        const auto range = std::span(values).subspan(offset);
        EXPECT_EQ(sum_of_squares(range), sum_in_order(range)) << size << " + " << offset;
        const std::vector<BFloat16> narrow = rounded(values);
        const std::vector<float> wide = widened(narrow);
        EXPECT_EQ(sum_of_squares(std::span(narrow).subspan(offset)),
                  sum_in_order(std::span(wide).subspan(offset)));
      }
    }
  });
}

TEST(SumOfSquares, ByHand) {
  EXPECT_EQ(sum_of_squares(std::vector<float>{}), 0);
  EXPECT_EQ(sum_of_squares(std::vector<float>{3, -4}), 25);
  EXPECT_EQ(sum_of_squares(std::vector<float>(262144, 0.5f)), 65536);
  EXPECT_EQ(sum_of_squares(std::vector<float>{0x1p-149f}), 0x1p-298);  // a subnormal counts
  EXPECT_EQ(sum_of_squares(std::vector<float>{0x1p127f}), 0x1p254);    // no overflow
}

TEST(SumOfSquares, NonFiniteGoesThroughAtEveryPlace) {
  for_each_target([](int64_t) {
    for (const size_t size : {1u, 31u, 32u, 33u, 70u}) {
      for (size_t place = 0; place < size; ++place) {
        std::vector<float> values(size, 1.0f);
        values[place] = -std::numeric_limits<float>::infinity();
        EXPECT_EQ(sum_of_squares(values), std::numeric_limits<double>::infinity());
        EXPECT_EQ(sum_of_squares(rounded(values)), std::numeric_limits<double>::infinity());
        values[place] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_TRUE(std::isnan(sum_of_squares(values)));
        EXPECT_TRUE(std::isnan(sum_of_squares(rounded(values))));
      }
    }
  });
}

TEST(SumOfSquares, ThreadsAndPiecesDoNotChangeBits) {
  const std::vector<float> values = nasty_mixture(3 * kNormChunk + 17);
  std::vector<double> expected;
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t begin = i * kNormChunk;
    const int64_t count = std::min<int64_t>(kNormChunk, static_cast<int64_t>(values.size()) - begin);
    expected.push_back(
        sum_in_order(std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(count))));
  }
  for (const int threads : {1, 2, 3}) {
    const auto pool = make_pool(threads);
    std::vector<double> sums(4);
    sums_of_squares(*pool, values, sums);
    EXPECT_EQ(sums, expected) << threads << " threads";
  }
  SerialExecutor executor;
  std::vector<double> pieces(4);  // as gradients of two blocks arrive
  sums_of_squares(executor, FloatView(values).subrange(2 * kNormChunk, kNormChunk + 17),
                  std::span(pieces).last(2));
  sums_of_squares(executor, FloatView(values).subrange(0, 2 * kNormChunk), std::span(pieces).first(2));
  EXPECT_EQ(pieces, expected);
}

TEST(SumOfSquares, MoreThanInt32Elements) {
  const size_t periods = 2050;  // 2^31 + 2^21 elements of bf16
  PeriodicRange<BFloat16> range(periods);
  ASSERT_GT(range.span().size(), size_t{1} << 31);
  for (BFloat16& value : range.period()) value = to_bfloat16(0.5f);
  const FloatView view(range.span());
  std::vector<double> sums(static_cast<size_t>(norm_chunk_count(view.size())));
  ASSERT_EQ(sums.size(), periods * 4);
  sums_of_squares(*make_pool(2), view, sums);
  EXPECT_EQ(tree_sum(sums), 0.25 * static_cast<double>(view.size()));
}

TEST(TreeSum, LeftPartIsAPowerOfTwo) {
  EXPECT_EQ(tree_sum({}), 0);
  EXPECT_EQ(tree_sum(std::vector<double>{7}), 7);
  // (a + b) + (c + d), then + e: a left fold, and a tree that splits in the middle, lose other bits.
  const double big = 0x1p53;
  EXPECT_EQ(tree_sum(std::vector<double>{1, 1, big, 1, 1}), ((1.0 + 1.0) + (big + 1.0)) + 1.0);
  EXPECT_EQ(tree_sum(std::vector<double>{big, 1, 1, 1, 1}), ((big + 1.0) + (1.0 + 1.0)) + 1.0);
  EXPECT_EQ(tree_sum(std::vector<double>{big, 1, 1, 1, 1, 1}), ((big + 1.0) + (1.0 + 1.0)) + (1.0 + 1.0));
  EXPECT_NE(tree_sum(std::vector<double>{big, 1, 1, 1, 1, 1}), (((((big + 1) + 1) + 1) + 1) + 1));
}

TEST(ClipCoefficient, IsTorchsFormula) {
  EXPECT_EQ(clip_coefficient(0, 1), 1.0f);
  EXPECT_EQ(clip_coefficient(0.5, 1), 1.0f);
  EXPECT_EQ(clip_coefficient(4, 1), static_cast<float>(1 / 4.000001));
  EXPECT_LT(*clip_coefficient(1, 1), 1.0f);  // the 1e-6 counts
  EXPECT_EQ(clip_coefficient(1e40, 1), static_cast<float>(1e-40));
  EXPECT_EQ(clip_coefficient(5, std::numeric_limits<double>::infinity()), 1.0f);
}

TEST(ClipCoefficient, NonFiniteNormSkips) {
  EXPECT_EQ(clip_coefficient(std::numeric_limits<double>::infinity(), 1), std::nullopt);
  EXPECT_EQ(clip_coefficient(std::numeric_limits<double>::quiet_NaN(), 1), std::nullopt);
}

}  // namespace
}  // namespace sluice::cpu_optim
