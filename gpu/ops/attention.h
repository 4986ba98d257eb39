#pragma once

#include <memory>
#include <vector>

#include "gpu/view.h"

// H query heads of D channels, G key/value heads (H a multiple of G; query head h uses key head h / (H / G)).
namespace sluice::gpu {

// Rows of q that attend to rows of k and v, causally: query i of a segment is at position key_count -
// query_count + i and sees the keys 0 .. that position of the segment. A packed row of documents is one
// segment a document with equal begins and counts; generation has few queries and a long cache.
struct AttentionSegment {
  int64_t query_begin = 0;
  int64_t query_count = 0;
  int64_t key_begin = 0;
  int64_t key_count = 0;
};

using AttentionSegments = std::shared_ptr<const std::vector<AttentionSegment>>;

struct AttentionShape {
  int64_t head_count = 0;            // H
  int64_t key_value_head_count = 0;  // G
  int64_t head_dim = 0;              // D
  float scale = 0;                   // of the scores, usually D^-0.5
};

// softmax(scale q k^T + causal mask) v in tiles of fixed size: scores are never T x T in memory. Rows of o
// and lse that no segment covers (padding) become 0. Query rows of different segments do not overlap.
struct AttentionForward {
  static constexpr const char* kName = "attention_forward";
  AttentionShape shape;
  AttentionSegments segments;
  View q;  // (Tq, H * D) fp32 or bf16; may be columns of a wider matrix, like k and v
  View k;  // (Tk, G * D)
  View v;  // (Tk, G * D)
  View o;  // (Tq, H * D)
  View
      lse;  // (Tq, H) fp32: natural log of the sum of exponentials of the scaled scores; or empty: not wanted
};

// Gradients of AttentionForward; segments have query_count == key_count here. Rows that no segment covers
// become 0. Sums over the query heads of a group and over queries are in order.
struct AttentionBackward {
  static constexpr const char* kName = "attention_backward";
  AttentionShape shape;
  AttentionSegments segments;
  View q, k, v, o;  // as in forward
  View lse;         // (T, H) fp32
  View d_o;         // (T, H * D)
  View dq;          // (T, H * D); dq, dk, dv may be columns of one matrix, and must not overlap the inputs
  View dk;          // (T, G * D)
  View dv;          // (T, G * D)
};

// Rotates pairs (x[i], x[i + D/2]) of every head by the row's angle ("rotate half", Su et al. 2021,
// arXiv:2104.09864; the pairing is Hugging Face's). In place.
struct Rope {
  static constexpr const char* kName = "rope";
  View x;          // (T, heads * D) fp32 or bf16, may be columns of a wider matrix
  View positions;  // (T, 1) int32
  View cos;        // (positions, D / 2) fp32
  View sin;        // (positions, D / 2) fp32
  int64_t head_dim = 0;
  bool inverse = false;  // rotate back: the gradient
};

}  // namespace sluice::gpu
