#include "io/stripe_map.h"

#include <cmath>
#include <gtest/gtest.h>
#include <set>

namespace sluice {
namespace {

const std::vector<std::vector<double>>& weight_lists() {
  static const std::vector<std::vector<double>> kLists = {
      {1},       {1, 1},       {3, 1},    {2.9, 3.1, 0.7},
      {1, 1, 1}, {7e9, 1.2e9}, {1, 1e-9}, {5, 4, 3, 2, 1, 0.5, 0.25, 9}};
  return kLists;
}

TEST(StripeMap, GivesEachStripeAPlaceOfItsOwn) {
  for (const std::vector<double>& weights : weight_lists()) {
    const StripeMap map(weights);
    std::vector<uint64_t> counts(weights.size());
    for (uint64_t stripe = 0; stripe < 3 * StripeMap::kPeriod + 5; ++stripe) {
      for (size_t file = 0; file < weights.size(); ++file) ASSERT_EQ(map.count(file, stripe), counts[file]);
      // The next slot of its file: so slots are dense, and a longer file is a continuation.
      const StripeMap::Place place = map.place(stripe);
      ASSERT_LT(place.file, weights.size());
      ASSERT_EQ(place.slot, counts[place.file]++);
    }
  }
}

TEST(StripeMap, KeepsAnyRunNearTheProportions) {
  for (const std::vector<double>& weights : weight_lists()) {
    const StripeMap map(weights);
    double sum = 0;
    for (double weight : weights) sum += weight;
    constexpr uint64_t kCount = 2 * StripeMap::kPeriod;
    for (size_t file = 0; file < weights.size(); ++file) {
      const double share = weights[file] / sum;
      for (const uint64_t begin : {uint64_t{0}, uint64_t{17}, uint64_t{999}}) {
        for (uint64_t count = 1; count < kCount; count += 3) {
          const auto dealt = static_cast<double>(map.count(file, begin + count) - map.count(file, begin));
          // Rounding to parts of a period shifts a share by one at most.
          const double slack = static_cast<double>(count) / StripeMap::kPeriod;
          ASSERT_LE(std::abs(dealt - share * static_cast<double>(count)), 2.5 + slack)
              << begin << " " << count;
        }
      }
    }
  }
}

TEST(StripeMap, AlternatesBetweenEquals) {
  const StripeMap map(std::vector<double>{1, 1});
  for (uint64_t stripe = 0; stripe < 3000; ++stripe) EXPECT_EQ(map.place(stripe).file, stripe % 2);
}

TEST(StripeMap, DealsThreeToOne) {
  const StripeMap map(std::vector<double>{3, 1});
  for (uint64_t stripe = 0; stripe < 3000; stripe += 4) EXPECT_EQ(map.count(0, stripe), stripe / 4 * 3);
}

}  // namespace
}  // namespace sluice
