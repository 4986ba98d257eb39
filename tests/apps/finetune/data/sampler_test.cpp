#include "apps/finetune/data/sampler.h"

#include <cmath>
#include <gtest/gtest.h>
#include <vector>

namespace sluice {
namespace {

std::vector<int64_t> order(const Sampler& sampler, int64_t epoch) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < sampler.row_count(); ++i) rows.push_back(sampler.row(epoch, i));
  return rows;
}

void expect_permutation(const std::vector<int64_t>& rows) {
  std::vector<bool> seen(rows.size(), false);
  for (const int64_t row : rows) {
    ASSERT_GE(row, 0);
    ASSERT_LT(row, static_cast<int64_t>(rows.size()));
    ASSERT_FALSE(seen[static_cast<size_t>(row)]) << row << " comes twice";
    seen[static_cast<size_t>(row)] = true;
  }
}

TEST(Sampler, EachRowOnceInEachEpoch) {
  for (int64_t count = 1; count <= 257; ++count) {
    for (int64_t epoch = 0; epoch < 3; ++epoch) expect_permutation(order(Sampler(count, 42), epoch));
  }
  for (const int64_t count : {65535, 65536, 65537, 100'003}) expect_permutation(order(Sampler(count, 1), 9));
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  const Sampler sampler(1000, 42);
  EXPECT_NE(order(sampler, 0), order(sampler, 1));
  EXPECT_NE(order(sampler, 0), order(Sampler(1000, 43), 0));
  EXPECT_EQ(order(sampler, 5), order(Sampler(1000, 42), 5));
}

// The order is part of the format: a run resumed by a later build must go on with the same rows.
TEST(Sampler, OrderIsPinned) {
  const std::vector<int64_t> rows = order(Sampler(10, 42), 0);
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 9, 3, 1, 4, 7, 8, 6, 5, 2}));
}

// Each row falls on each place about equally often, and neighbours do not stay neighbours.
TEST(Sampler, LooksRandom) {
  constexpr int64_t kRows = 7;
  constexpr int64_t kEpochs = 7000;
  const Sampler sampler(kRows, 3);
  double chi_square = 0;
  std::vector<std::vector<int>> counts(kRows, std::vector<int>(kRows, 0));
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    for (int64_t i = 0; i < kRows; ++i)
      ++counts[static_cast<size_t>(i)][static_cast<size_t>(sampler.row(epoch, i))];
  }
  const double expected = static_cast<double>(kEpochs) / kRows;
  for (const auto& line : counts) {
    for (const int count : line) chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 68) << "36 degrees of freedom: over 68 once in a thousand";
  const Sampler large(10'000, 3);
  int neighbours = 0;
  for (int64_t i = 1; i < 10'000; ++i) neighbours += std::abs(large.row(0, i) - large.row(0, i - 1)) == 1;
  EXPECT_LT(neighbours, 20) << "2 are expected";
}

}  // namespace
}  // namespace sluice
