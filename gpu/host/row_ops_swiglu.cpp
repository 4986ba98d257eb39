#include "gpu/host/row_ops.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ops_swiglu.cpp"
// clang-format off
#include "gpu/host/row_ops_pieces.h"
#include "hwy/foreach_target.h"
#include "gpu/host/row_ops-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {

HWY_INLINE FloatVec sigmoid(FloatVec x) {
  const FloatVec one = set(1.0f);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(x))));
}

template <class T>
HWY_INLINE void swiglu_forward_row(const SwigluForward& op, int64_t t) {
  const T* gate = op.gate_up.row<T>(t);
  const T* up = gate + op.y.cols;
  T* y = op.y.row<T>(t);
  for_each_vector(0, op.y.cols, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec x = access.load(gate + i);
    access.store(hn::Mul(hn::Mul(x, sigmoid(x)), access.load(up + i)), y + i);
  });
}

void swiglu_forward_rows(const SwigluForward& op, int64_t begin, int64_t end) {
  with_compute_type(op.y.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    for (int64_t t = begin; t < end; ++t) swiglu_forward_row<decltype(type)>(op, t);
  });
}

// silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x). The forward's result comes from the same expression as
// there.
template <class T>
HWY_INLINE void swiglu_backward_row(const SwigluBackward& op, int64_t t) {
  const int64_t width = op.dy.cols;
  const T* gate = op.gate_up.row<T>(t);
  const T* dy = op.dy.row<T>(t);
  T* d_gate = op.d_gate_up.row<T>(t);
  T* y = op.y.empty() ? nullptr : op.y.row<T>(t);
  for_each_vector(0, width, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
    const FloatVec x = access.load(gate + i);  // both read before d_gate_up is written: they may be the same
    const FloatVec up = access.load(gate + width + i);
    const FloatVec d = access.load(dy + i);
    const FloatVec s = sigmoid(x);
    const FloatVec silu = hn::Mul(x, s);
    const FloatVec slope = hn::MulAdd(silu, hn::Sub(set(1.0f), s), s);
    if (y != nullptr) access.store(hn::Mul(silu, up), y + i);
    access.store(hn::Mul(hn::Mul(d, up), slope), d_gate + i);
    access.store(hn::Mul(d, silu), d_gate + width + i);
  });
}

void swiglu_backward_rows(const SwigluBackward& op, int64_t begin, int64_t end) {
  with_compute_type(op.dy.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    for (int64_t t = begin; t < end; ++t) swiglu_backward_row<decltype(type)>(op, t);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(swiglu_forward_rows);
HWY_EXPORT(swiglu_backward_rows);

void run(const SwigluForward& op, Executor& executor, Workspace) {
  if (op.y.cols == 0) return;
  run_ranges(executor, op.y.rows, rows_per_task(op.y.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(swiglu_forward_rows)(op, begin, end);
  });
}

void run(const SwigluBackward& op, Executor& executor, Workspace) {
  if (op.dy.cols == 0) return;
  run_ranges(executor, op.dy.rows, rows_per_task(op.dy.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_rows)(op, begin, end);
  });
}

}  // namespace sluice::gpu::host
#endif  // HWY_ONCE
