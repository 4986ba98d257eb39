#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {
namespace {

void clear(const View& view) {
  for (int64_t row = 0; row < view.rows; ++row)
    for (int64_t col = 0; col < view.cols; ++col) store(view, row, col, 0);
}

double dot(const View& a, int64_t a_row, int64_t a_col, const View& b, int64_t b_row, int64_t b_col,
           int64_t count) {
  double sum = 0;
  for (int64_t d = 0; d < count; ++d) sum += load(a, a_row, a_col + d) * load(b, b_row, b_col + d);
  return sum;
}

// One query row of one head: its scores, their log-sum-exp, and its row of o.
void attend(const AttentionForward& op, const AttentionSegment& segment, int64_t head, int64_t i) {
  const int64_t head_dim = op.shape.head_dim;
  const int64_t q_col = head * head_dim;
  const int64_t k_col = head / (op.shape.head_count / op.shape.key_value_head_count) * head_dim;
  const int64_t t = segment.query_begin + i;
  const int64_t visible = segment.key_count - segment.query_count + i + 1;
  std::vector<double> scores(static_cast<size_t>(visible));
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < visible; ++j) {
    const double score = op.shape.scale * dot(op.q, t, q_col, op.k, segment.key_begin + j, k_col, head_dim);
    scores[static_cast<size_t>(j)] = score;
    max = std::max(max, score);
  }
  double sum = 0;
  for (double score : scores) sum += std::exp(score - max);
  for (int64_t d = 0; d < head_dim; ++d) {
    double value = 0;
    for (int64_t j = 0; j < visible; ++j)
      value +=
          std::exp(scores[static_cast<size_t>(j)] - max) / sum * load(op.v, segment.key_begin + j, k_col + d);
    store(op.o, t, q_col + d, value);
  }
  if (!op.lse.empty()) store(op.lse, t, head, max + std::log(sum));
}

// Gradients of one key/value head within one segment: p = exp(s - lse), dp = d_o v, ds = p (dp - d_o o)
// scale.
void differentiate(const AttentionBackward& op, const AttentionSegment& segment, int64_t group) {
  const int64_t head_dim = op.shape.head_dim;
  const int64_t heads = op.shape.head_count / op.shape.key_value_head_count;
  const int64_t begin = segment.query_begin;
  const int64_t count = segment.query_count;
  const int64_t k_col = group * head_dim;
  std::vector<double> dk(static_cast<size_t>(count * head_dim), 0.0), dv(dk),
      dq(static_cast<size_t>(head_dim));
  for (int64_t head = group * heads; head < (group + 1) * heads; ++head) {
    const int64_t q_col = head * head_dim;
    for (int64_t i = 0; i < count; ++i) {
      const double inner = dot(op.d_o, begin + i, q_col, op.o, begin + i, q_col, head_dim);
      std::fill(dq.begin(), dq.end(), 0.0);
      for (int64_t j = 0; j <= i; ++j) {
        const double score = op.shape.scale * dot(op.q, begin + i, q_col, op.k, begin + j, k_col, head_dim);
        const double p = std::exp(score - load(op.lse, begin + i, head));
        const double dp = dot(op.d_o, begin + i, q_col, op.v, begin + j, k_col, head_dim);
        const double ds = p * (dp - inner) * op.shape.scale;
        for (int64_t d = 0; d < head_dim; ++d) {
          dv[static_cast<size_t>(j * head_dim + d)] += p * load(op.d_o, begin + i, q_col + d);
          dk[static_cast<size_t>(j * head_dim + d)] += ds * load(op.q, begin + i, q_col + d);
          dq[static_cast<size_t>(d)] += ds * load(op.k, begin + j, k_col + d);
        }
      }
      for (int64_t d = 0; d < head_dim; ++d) store(op.dq, begin + i, q_col + d, dq[static_cast<size_t>(d)]);
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t d = 0; d < head_dim; ++d) {
      store(op.dk, begin + j, k_col + d, dk[static_cast<size_t>(j * head_dim + d)]);
      store(op.dv, begin + j, k_col + d, dv[static_cast<size_t>(j * head_dim + d)]);
    }
  }
}

}  // namespace

void run(const AttentionForward& op) {
  clear(op.o);
  if (!op.lse.empty()) clear(op.lse);
  for (const AttentionSegment& segment : *op.segments)
    for (int64_t head = 0; head < op.shape.head_count; ++head)
      for (int64_t i = 0; i < segment.query_count; ++i) attend(op, segment, head, i);
}

void run(const AttentionBackward& op) {
  clear(op.dq);
  clear(op.dk);
  clear(op.dv);
  for (const AttentionSegment& segment : *op.segments)
    for (int64_t group = 0; group < op.shape.key_value_head_count; ++group) differentiate(op, segment, group);
}

void run(const Rope& op) {
  const int64_t half = op.head_dim / 2;
  for (int64_t t = 0; t < op.x.rows; ++t) {
    const int64_t position = load_index(op.positions, t);
    SLUICE_CHECK(0 <= position && position < op.cos.rows);
    for (int64_t begin = 0; begin < op.x.cols; begin += op.head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const double cos = load(op.cos, position, i);
        const double sin = op.inverse ? -load(op.sin, position, i) : load(op.sin, position, i);
        const double left = load(op.x, t, begin + i);
        const double right = load(op.x, t, begin + half + i);
        store(op.x, t, begin + i, left * cos - right * sin);
        store(op.x, t, begin + half + i, right * cos + left * sin);
      }
    }
  }
}

}  // namespace sluice::gpu::reference::kernels
