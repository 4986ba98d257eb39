#include <cstring>

#include "gpu/host/row_ops.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/row_ops_embedding.cpp"
// clang-format off
#include "gpu/host/row_ops_pieces.h"
#include "hwy/foreach_target.h"
#include "gpu/host/row_ops-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {

// Row u of the gradient: a vector of columns at a time over all tokens of the row, so that sums stay in
// registers.
template <class T>
HWY_INLINE void embedding_backward_row(const EmbeddingBackward& op, int64_t u) {
  const int32_t begin = *op.begin.row<int32_t>(u);
  const int32_t end = *op.begin.row<int32_t>(u + 1);
  SLUICE_CHECK(0 <= begin && begin <= end && end <= op.order.rows);
  float* row = op.d_rows.row<float>(u);
  for_each_vector(0, op.d_rows.cols, [&](int64_t c, auto access) SLUICE_SIMD_LAMBDA {
    FloatVec sum = op.accumulate ? access.load(row + c) : set(0);
    for (int64_t i = begin; i < end; ++i)
      sum = hn::Add(sum, access.load(op.dy.row<T>(*op.order.row<int32_t>(i)) + c));
    access.store(sum, row + c);
  });
}

void embedding_backward_rows(const EmbeddingBackward& op, int64_t begin, int64_t end) {
  with_compute_type(op.dy.dtype, [&](auto type) SLUICE_SIMD_LAMBDA {
    for (int64_t u = begin; u < end; ++u) embedding_backward_row<decltype(type)>(op, u);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(embedding_backward_rows);

namespace {

void copy_row(const View& from, int64_t from_row, const View& to, int64_t to_row) {
  SLUICE_CHECK(0 <= from_row && from_row < from.rows && 0 <= to_row && to_row < to.rows);
  const size_t size = size_bytes(from.dtype);
  std::memcpy(to.data + static_cast<size_t>(to_row * to.stride) * size,
              from.data + static_cast<size_t>(from_row * from.stride) * size,
              static_cast<size_t>(from.cols) * size);
}

}  // namespace

void run(const GatherRows& op, Executor& executor, Workspace) {
  if (op.y.cols == 0) return;
  run_ranges(executor, op.y.rows, rows_per_task(op.y.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) copy_row(op.table, *op.index.row<int32_t>(t), op.y, t);
  });
}

void run(const ScatterRows& op, Executor& executor, Workspace) {
  if (op.x.cols == 0) return;
  run_ranges(executor, op.x.rows, rows_per_task(op.x.cols), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) copy_row(op.x, t, op.y, *op.index.row<int32_t>(t));
  });
}

void run(const EmbeddingBackward& op, Executor& executor, Workspace) {
  if (op.d_rows.cols == 0) return;
  constexpr int64_t kRows = 16;  // a row may stand for many tokens
  run_ranges(executor, op.d_rows.rows, kRows, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(embedding_backward_rows)(op, begin, end);
  });
}

}  // namespace sluice::gpu::host
#endif  // HWY_ONCE
