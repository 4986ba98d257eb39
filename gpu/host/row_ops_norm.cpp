#include <algorithm>
#include <cmath>

#include "gpu/host/row_ops.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ops_norm.cpp"
// clang-format off
#include "gpu/host/row_ops_pieces.h"
#include "hwy/foreach_target.h"
#include "gpu/host/row_ops-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE void norm_forward_row(const RmsNormForward& op, int64_t t) {
  const int64_t cols = op.x.cols;
  const T* x = op.x.row<T>(t);
  const T* weight = op.weight.row<T>(0);
  T* y = op.y.row<T>(t);
  SumLanes squares(0);
  for_each_unit(cols, [&](auto unit, int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec value = access.load(x + i);
    squares.unit[unit()] = hn::MulAdd(value, value, squares.unit[unit()]);
  });
  const float rstd = 1.0f / std::sqrt(squares.sum() / static_cast<float>(cols) + op.epsilon);
  for_each_vector(0, cols, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec normal = rounded<T>(hn::Mul(access.load(x + i), set(rstd)));
    access.store(hn::Mul(normal, access.load(weight + i)), y + i);
  });
  if (!op.rstd.empty()) *op.rstd.row<float>(t) = rstd;
}

void norm_forward_rows(const RmsNormForward& op, int64_t begin, int64_t end) {
  with_compute_type(op.x.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    for (int64_t t = begin; t < end; ++t) norm_forward_row<decltype(type)>(op, t);
  });
}

// dweight: (C) fp32, the sum over the rows so far; or null.
template <class T, bool kAddend>
HWY_INLINE void norm_backward_row(const RmsNormBackward& op, int64_t t, float* dweight) {
  const int64_t cols = op.x.cols;
  const T* x = op.x.row<T>(t);
  const T* dy = op.dy.row<T>(t);
  const T* weight = op.weight.row<T>(0);
  const T* addend = kAddend ? op.addend.row<T>(t) : nullptr;
  T* dx = op.dx.row<T>(t);
  const float rstd = *op.rstd.row<float>(t);
  SumLanes dot(0);
  for_each_unit(cols, [&](auto unit, int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec d_normal = hn::Mul(access.load(dy + i), access.load(weight + i));
    dot.unit[unit()] = hn::MulAdd(d_normal, access.load(x + i), dot.unit[unit()]);
  });
  const FloatVec scale = set(rstd);
  const FloatVec mean = set(dot.sum() * rstd / static_cast<float>(cols));
  for_each_vector(0, cols, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec dy_i = access.load(dy + i);  // read before dx is written: they may be the same
    const FloatVec normal = hn::Mul(access.load(x + i), scale);
    const FloatVec inner = hn::NegMulAdd(normal, mean, hn::Mul(dy_i, access.load(weight + i)));
    FloatVec result = hn::Mul(inner, scale);
    if constexpr (kAddend) result = hn::MulAdd(inner, scale, access.load(addend + i));
    if (dweight != nullptr) access.store(hn::MulAdd(dy_i, normal, access.load(dweight + i)), dweight + i);
    access.store(result, dx + i);
  });
}

void norm_backward_rows(const RmsNormBackward& op, int64_t begin, int64_t end, float* dweight) {
  with_compute_type(op.x.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    using T = decltype(type);
    for (int64_t t = begin; t < end; ++t) {
      if (op.addend.empty())
        norm_backward_row<T, false>(op, t, dweight);
      else
        norm_backward_row<T, true>(op, t, dweight);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(norm_forward_rows);
HWY_EXPORT(norm_backward_rows);

namespace {

constexpr int64_t kRangeRows = 64;  // gpu/ops/norm.h promises it

// dweight (+)= the ranges' sums, in order. partials: (range_count, cols) fp32
void add_partials(const float* partials, int64_t range_count, const RmsNormBackward& op, Executor& executor) {
  float* dweight = op.dweight.row<float>(0);
  const int64_t cols = op.x.cols;
  run_ranges(executor, cols, 1024, [&](int64_t begin, int64_t end, int) {
    if (!op.accumulate) std::fill(dweight + begin, dweight + end, 0.0f);
    for (int64_t range = 0; range < range_count; ++range)
      for (int64_t c = begin; c < end; ++c) dweight[c] += partials[range * cols + c];
  });
}

}  // namespace

void run(const RmsNormForward& op, Executor& executor, Workspace) {
  if (op.x.cols == 0) return;
  run_ranges(executor, op.x.rows, rows_per_task(op.x.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(norm_forward_rows)(op, begin, end);
  });
}

size_t workspace_bytes(const RmsNormBackward& op, int) {
  const int64_t wanted = op.dweight.rows * op.dweight.cols;
  return static_cast<size_t>(divide_up(op.x.rows, kRangeRows) * wanted) * sizeof(float);
}

void run(const RmsNormBackward& op, Executor& executor, Workspace workspace) {
  const int64_t cols = op.x.cols;
  if (cols == 0) return;
  const bool wanted = !op.dweight.empty();
  SLUICE_CHECK(!wanted || workspace.size_bytes >= workspace_bytes(op, executor.thread_count()));
  float* partials = wanted ? reinterpret_cast<float*>(workspace.data) : nullptr;
  run_ranges(executor, op.x.rows, kRangeRows, [&](int64_t begin, int64_t end, int) {
    float* partial = wanted ? partials + begin / kRangeRows * cols : nullptr;
    if (wanted) std::fill(partial, partial + cols, 0.0f);
    HWY_DYNAMIC_DISPATCH(norm_backward_rows)(op, begin, end, partial);
  });
  if (wanted) add_partials(partials, divide_up(op.x.rows, kRangeRows), op, executor);
}

}  // namespace sluice::gpu::host
#endif  // HWY_ONCE
