#pragma once

#include <cstdint>

#include "engine/base/dtype.h"

// Attention's work on rows of scores between its matmuls. Rows lie in scratch and may be read and written in
// whole vectors of 16 floats: `padded` is a multiple of 16, at least `visible`. Elements from `visible` to
// `padded` become 0. Sums have a fixed order on one processor.
namespace sluice::gpu::host {

struct SoftmaxRow {
  const float* scores = nullptr;
  void* weights = nullptr;  // out: exp(score * scale - max), fp32 or bf16; may be scores where fp32
  DType dtype = DType::f32;
  int64_t visible = 0;
  int64_t padded = 0;
  float factor = 0;  // scale * log2(e)
};
struct SoftmaxSum {
  float max = 0;  // of score * factor: an exponent of 2
  float sum = 0;  // of the weights before they are rounded to bf16
};
SoftmaxSum softmax_row(const SoftmaxRow& row);

// out[i] = in[i] * factor in out's dtype.
void scale_row(const float* in, float factor, int64_t count, void* out, DType dtype);

// Sum of a[i] * b[i], both fp32 or both bf16.
float dot_row(const void* a, const void* b, int64_t count, DType dtype);

void widen_row(const void* bf16, int64_t count, float* out);

// Of one row: p = exp2(score * factor - log_sum), ds = p * (dp - delta) * scale.
struct ScoreRow {
  float* scores = nullptr;     // padded
  float* d_weights = nullptr;  // dp, padded
  int64_t visible = 0;
  float log_sum = 0;  // base 2
  float delta = 0;
};
struct ScoreScale {
  float scale = 0;
  float factor = 0;  // scale * log2(e)
  int64_t padded = 0;
};
// In place: scores become p, d_weights become ds.
void score_gradient_row(const ScoreRow& row, const ScoreScale& scale);

// Two rows (the second may have visible 0) in bf16: as pairs, the first row in the low half, and ds as rows
// too.
struct ScorePairs {
  uint32_t* weights = nullptr;     // p
  uint32_t* d_scores = nullptr;    // ds
  uint16_t* d_score_rows[2] = {};  // ds
};
void score_gradient_pair(const ScoreRow& first, const ScoreRow& second, const ScoreScale& scale,
                         const ScorePairs& out);

}  // namespace sluice::gpu::host
