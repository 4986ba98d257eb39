#include "engine/train/shards.h"

#include <gtest/gtest.h>
#include <utility>
#include <vector>

namespace sluice {
namespace {

using Steps = std::vector<std::pair<int, int>>;

Steps tree(int shard_count) {
  Steps steps;
  for_each_tree_step(shard_count, [&](int into, int from) { steps.emplace_back(into, from); });
  return steps;
}

TEST(Shards, AreConsecutiveAndAsEvenAsCanBe) {
  for (int micro_batches = 1; micro_batches <= 20; ++micro_batches) {
    for (int shards = 1; shards <= micro_batches; ++shards) {
      std::vector<int> sizes(static_cast<size_t>(shards));
      int last = 0;
      for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
        const int shard = shard_of(micro_batch, micro_batches, shards);
        ASSERT_TRUE(shard == last || shard == last + 1) << "consecutive ones";
        ++sizes.at(static_cast<size_t>(shard));
        last = shard;
      }
      for (const int size : sizes) {
        EXPECT_GE(size, micro_batches / shards);
        EXPECT_LE(size, (micro_batches + shards - 1) / shards);
      }
    }
  }
}

TEST(Shards, ByHand) {
  const auto all = [](int micro_batches, int shards) {
    std::vector<int> result;
    for (int i = 0; i < micro_batches; ++i) result.push_back(shard_of(i, micro_batches, shards));
    return result;
  };
  EXPECT_EQ(all(4, 1), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(all(4, 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(all(5, 4), (std::vector<int>{0, 0, 1, 2, 3}));
  EXPECT_EQ(all(2, 4), (std::vector<int>{0, 2})) << "fewer micro-batches than shards";
}

// Ranks that divide S hold S / ranks consecutive shards each: the same micro-batches, whatever their number.
TEST(Shards, OfFewerRanksAreUnionsOfThoseOfMore) {
  for (const int micro_batches : {8, 16, 24}) {
    for (int i = 0; i < micro_batches; ++i) {
      EXPECT_EQ(shard_of(i, micro_batches, 8) / 2, shard_of(i, micro_batches, 4));
      EXPECT_EQ(shard_of(i, micro_batches, 8) / 4, shard_of(i, micro_batches, 2));
    }
  }
}

TEST(ShardTree, ByHand) {
  EXPECT_EQ(tree(1), (Steps{}));
  EXPECT_EQ(tree(2), (Steps{{0, 1}}));
  EXPECT_EQ(tree(3), (Steps{{0, 1}, {0, 2}}));
  EXPECT_EQ(tree(4), (Steps{{0, 1}, {2, 3}, {0, 2}}));
  EXPECT_EQ(tree(8), (Steps{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {0, 2}, {4, 6}, {0, 4}}));
}

TEST(ShardTree, AddsEachShardOnceAndNeverAfterwards) {
  for (int shards = 1; shards <= 33; ++shards) {
    std::vector<int> holds(static_cast<size_t>(shards), 1);
    for (const auto& [into, from] : tree(shards)) {
      ASSERT_GT(holds[static_cast<size_t>(into)], 0);
      ASSERT_GT(holds[static_cast<size_t>(from)], 0);
      holds[static_cast<size_t>(into)] += std::exchange(holds[static_cast<size_t>(from)], 0);
    }
    EXPECT_EQ(holds[0], shards);
  }
}

}  // namespace
}  // namespace sluice
