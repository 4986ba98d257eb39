#pragma once

#include "gpu/view.h"

namespace sluice::gpu {

// y[t] = table[index[t]]. The table holds just the rows that a step needs, so its rows are not token ids.
struct GatherRows {
  static constexpr const char* kName = "gather_rows";
  View table;  // (U, C) fp32 or bf16
  View index;  // (T, 1) int32 in [0, U)
  View y;      // (T, C) dtype of table
};

// y[index[t]] = x[t]; indices differ. Appends keys and values to a cache.
struct ScatterRows {
  static constexpr const char* kName = "scatter_rows";
  View x;      // (T, C)
  View index;  // (T, 1) int32
  View y;      // (rows, C) dtype of x
};

// The embedding's gradient, without atomics: d_rows[u] (+)= sum of dy[order[i]] for i in [begin[u], begin[u +
// 1]), in that order. Rows u without tokens are left (accumulate) or become 0.
struct EmbeddingBackward {
  static constexpr const char* kName = "embedding_backward";
  View dy;      // (T, C) fp32 or bf16
  View order;   // (count, 1) int32: token positions grouped by row
  View begin;   // (U + 1, 1) int32
  View d_rows;  // (U, C) fp32
  bool accumulate = false;
};

}  // namespace sluice::gpu
