#include <cmath>
#include <limits>

#include "gpu/host/row_ops.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ops_loss.cpp"
// clang-format off
#include "gpu/host/row_ops_pieces.h"
#include "hwy/foreach_target.h"
#include "gpu/host/row_ops-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

HWY_INLINE float row_max(const float* logits, int64_t cols) {
  SumLanes max(kNothing);
  for_each_unit(cols, [&](auto unit, int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec value = access.keep(access.load(logits + i), set(kNothing));
    max.unit[unit()] = hn::Max(max.unit[unit()], value);
  });
  return max.max();
}

// A NaN may get lost in the maximum, never in the sum.
HWY_INLINE float row_sum(const float* logits, int64_t cols, float max) {
  SumLanes sum(0);
  for_each_unit(cols, [&](auto unit, int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec value = exp(hn::Sub(access.load(logits + i), set(max)));
    sum.unit[unit()] = hn::Add(sum.unit[unit()], access.keep(value, set(0)));
  });
  return sum.sum();
}

HWY_INLINE float exp_of(float x) {
  return hn::GetLane(exp(set(x)));
}

void log_sum_exp_rows(const LogSumExpUpdate& op, int64_t begin, int64_t end) {
  const int64_t cols = op.logits.cols;
  for (int64_t r = begin; r < end; ++r) {
    const float* logits = op.logits.row<float>(r);
    float* max = op.max.row<float>(r);
    float* sum = op.sum.row<float>(r);
    const float piece_max = row_max(logits, cols);
    const float new_max = op.first || piece_max > *max ? piece_max : *max;
    const float piece_sum = row_sum(logits, cols, new_max);
    // The same maximum twice needs no factor; it may also be minus infinity, whose difference is NaN.
    const float old_sum = op.first ? 0.0f : *max == new_max ? *sum : *sum * exp_of(*max - new_max);
    *max = new_max;
    *sum = old_sum + piece_sum;
    if (op.targets.empty()) continue;
    const int64_t target = *op.targets.row<int32_t>(r);
    const int64_t entry = target - op.piece_begin;
    if (target >= 0 && 0 <= entry && entry < cols)
      *op.target_logit.row<float>(r) = logits[entry];
    else if (op.first)
      *op.target_logit.row<float>(r) = 0;
  }
}

template <class T>
HWY_INLINE void cross_entropy_row(const CrossEntropyBackward& op, int64_t r) {
  const int64_t cols = op.logits.cols;
  const float* logits = op.logits.row<float>(r);
  T* d_logits = op.d_logits.row<T>(r);
  const int64_t target = *op.targets.row<int32_t>(r);
  const int64_t entry = target - op.piece_begin;
  const bool labelled = target >= 0;
  const float factor = labelled ? *op.weights.row<float>(r) * op.scale : 0.0f;
  const FloatVec scale = set(labelled ? factor / *op.sum.row<float>(r) : 0.0f);
  const FloatVec max = set(labelled ? *op.max.row<float>(r) : 0.0f);
  const bool here = labelled && 0 <= entry && entry < cols;
  const FloatVec hit = here ? exp(hn::Sub(set(logits[entry]), max)) : set(0);  // d_logits may be logits
  for_each_vector(0, cols, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec value = labelled ? hn::Mul(exp(hn::Sub(access.load(logits + i), max)), scale) : set(0);
    access.store(value, d_logits + i);
  });
  if (here) Part{1}.store(hn::Sub(hn::Mul(hit, scale), set(factor)), d_logits + entry);
}

void cross_entropy_rows(const CrossEntropyBackward& op, int64_t begin, int64_t end) {
  with_compute_type(op.d_logits.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    for (int64_t r = begin; r < end; ++r) cross_entropy_row<decltype(type)>(op, r);
  });
}

void arg_max_rows(const ArgMaxUpdate& op, int64_t begin, int64_t end) {
  const int64_t cols = op.logits.cols;
  for (int64_t r = begin; r < end; ++r) {
    const float* logits = op.logits.row<float>(r);
    float* max = op.max.row<float>(r);
    int32_t* index = op.index.row<int32_t>(r);
    if (op.first) *max = kNothing;
    if (op.first) *index = -1;
    if (cols == 0) continue;
    const float piece_max = row_max(logits, cols);
    int64_t entry = 0;
    while (entry + 1 < cols && logits[entry] != piece_max) ++entry;
    const int32_t id = static_cast<int32_t>(op.piece_begin + entry);
    if (piece_max > *max || *index < 0 || (piece_max == *max && id < *index)) {
      *max = piece_max;
      *index = id;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(log_sum_exp_rows);
HWY_EXPORT(cross_entropy_rows);
HWY_EXPORT(arg_max_rows);

void run(const LogSumExpUpdate& op, Executor& executor, Workspace) {
  run_ranges(executor, op.logits.rows, rows_per_task(op.logits.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(log_sum_exp_rows)(op, begin, end);
  });
}

void run(const TokenLoss& op, Executor&, Workspace) {
  for (int64_t r = 0; r < op.loss.rows; ++r) {
    const float nll =
        *op.max.row<float>(r) + std::log(*op.sum.row<float>(r)) - *op.target_logit.row<float>(r);
    *op.loss.row<float>(r) = *op.targets.row<int32_t>(r) < 0 ? 0.0f : *op.weights.row<float>(r) * nll;
  }
}

void run(const CrossEntropyBackward& op, Executor& executor, Workspace) {
  if (op.logits.cols == 0) return;
  run_ranges(executor, op.logits.rows, rows_per_task(op.logits.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(cross_entropy_rows)(op, begin, end);
  });
}

void run(const ArgMaxUpdate& op, Executor& executor, Workspace) {
  run_ranges(executor, op.logits.rows, rows_per_task(op.logits.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(arg_max_rows)(op, begin, end);
  });
}

}  // namespace sluice::gpu::host
#endif  // HWY_ONCE
