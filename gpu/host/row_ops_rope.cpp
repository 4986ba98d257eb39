#include "gpu/host/row_ops.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ops_rope.cpp"
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
HWY_INLINE void rope_row(const Rope& op, int64_t t, const float* cos, const float* sin) {
  const int64_t half = op.head_dim / 2;
  const FloatVec sign = set(op.inverse ? -1.0f : 1.0f);
  for (int64_t begin = 0; begin < op.x.cols; begin += op.head_dim) {
    T* left = op.x.row<T>(t) + begin;
    T* right = left + half;
    for_each_vector(0, half, [&](int64_t i, auto access) SLUICE_SIMD_LAMBDA {
      const FloatVec c = access.load(cos + i);
      const FloatVec s = hn::Mul(access.load(sin + i), sign);
      const FloatVec a = access.load(left + i);
      const FloatVec b = access.load(right + i);
      access.store(hn::NegMulAdd(b, s, hn::Mul(a, c)), left + i);
      access.store(hn::MulAdd(a, s, hn::Mul(b, c)), right + i);
    });
  }
}

void rope_rows(const Rope& op, int64_t begin, int64_t end) {
  with_compute_type(op.x.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = *op.positions.row<int32_t>(t);
      SLUICE_CHECK(0 <= position && position < op.cos.rows);
      rope_row<decltype(type)>(op, t, op.cos.row<float>(position), op.sin.row<float>(position));
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(rope_rows);

void run(const Rope& op, Executor& executor, Workspace) {
  if (op.x.cols == 0) return;
  run_ranges(executor, op.x.rows, rows_per_task(op.x.cols), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(rope_rows)(op, begin, end);
  });
}

}  // namespace sluice::gpu::host
#endif  // HWY_ONCE
