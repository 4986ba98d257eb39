#pragma once

#include <functional>

#include "engine/base/error.h"

// A window of micro-batches is cut into S shards of consecutive ones. Sums over the window are a left fold
// within each shard and a fixed binary tree across them, for gradients and losses alike: so a world of any
// number of ranks that divides S gives the same bits.
namespace sluice {

inline int shard_of(int micro_batch, int micro_batch_count, int shard_count) {
  SLUICE_CHECK(0 <= micro_batch && micro_batch < micro_batch_count && shard_count >= 1);
  return static_cast<int>(static_cast<long long>(micro_batch) * shard_count / micro_batch_count);
}

// Calls add(into, from) for the steps of the tree over shards [0, shard_count); the sum ends in shard 0.
inline void for_each_tree_step(int shard_count, const std::function<void(int into, int from)>& add) {
  for (int stride = 1; stride < shard_count; stride *= 2) {
    for (int shard = 0; shard + stride < shard_count; shard += 2 * stride) add(shard, shard + stride);
  }
}

}  // namespace sluice
