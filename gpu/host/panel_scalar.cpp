#include "gpu/host/panel_scalar.h"

#include <algorithm>

namespace sluice::gpu::host {
namespace {

// Where element (depth, col) of b goes: pairs of depths lie side by side in bf16.
template <class T>
int64_t panel_index(int64_t depth, int64_t col, int64_t width) {
  if constexpr (sizeof(T) == 4)
    return depth * width + col;
  else
    return (depth / 2 * width + col) * 2 + depth % 2;
}

template <class T>
T load(const StackedRows::Row& row, int64_t col, bool round_to_bf16) {
  if constexpr (sizeof(T) == 4)
    return round_to_bf16 ? to_float(load_bfloat16(row, col)) : load_float(row, col);
  else
    return load_bfloat16(row, col);
}

template <class T>
void pack(const PanelPack& job) {
  T* panel = reinterpret_cast<T*>(job.panel);
  const StackedRows rows(job.sources);
  const int64_t padded_depth = sizeof(T) == 4 ? job.depth : (job.depth + 1) / 2 * 2;
  for (int64_t d = 0; d < padded_depth; ++d)
    for (int64_t c = d < job.depth ? job.col_count : 0; c < job.width; ++c)
      panel[panel_index<T>(d, c, job.width)] = T{};
  if (job.order == PackOrder::depth_is_row) {
    for (int64_t d = 0; d < job.depth; ++d) {
      const StackedRows::Row row = rows[job.depth_begin + d];
      for (int64_t c = 0; c < job.col_count; ++c)
        panel[panel_index<T>(d, c, job.width)] = load<T>(row, job.col_begin + c, job.round_to_bf16);
    }
  } else {
    for (int64_t c = 0; c < job.col_count; ++c) {
      const StackedRows::Row row = rows[job.col_begin + c];
      for (int64_t d = 0; d < job.depth; ++d)
        panel[panel_index<T>(d, c, job.width)] = load<T>(row, job.depth_begin + d, job.round_to_bf16);
    }
  }
}

template <class T>
void copy(const PanelPack& job) {
  T* out = reinterpret_cast<T*>(job.panel);
  const StackedRows rows(job.sources);
  for (int64_t d = 0; d < job.depth; ++d) {
    const StackedRows::Row row = rows[job.depth_begin + d];
    for (int64_t c = 0; c < job.col_count; ++c)
      out[d * job.col_count + c] = load<T>(row, job.col_begin + c, job.round_to_bf16);
  }
}

// In squares of 16, so that both sides stay in cache lines.
template <class T>
void copy_turned(const View& source, T* out, int64_t stride) {
  constexpr int64_t kSquare = 16;
  const PackRows rows{source, {}};
  const StackedRows stacked({&rows, 1});
  for (int64_t begin = 0; begin < source.rows; begin += kSquare)
    for (int64_t c = 0; c < source.cols; ++c)
      for (int64_t r = begin; r < std::min(source.rows, begin + kSquare); ++r)
        out[c * stride + r] = load<T>(stacked[r], c, false);
}

}  // namespace

void copy_rows(const PanelPack& job, DType operand) {
  if (operand == DType::f32)
    copy<float>(job);
  else
    copy<BFloat16>(job);
}

void copy_transposed(const View& source, DType operand, std::byte* out, int64_t stride_bytes) {
  const int64_t stride = stride_bytes / static_cast<int64_t>(size_bytes(operand));
  if (operand == DType::f32)
    copy_turned(source, reinterpret_cast<float*>(out), stride);
  else
    copy_turned(source, reinterpret_cast<BFloat16*>(out), stride);
}

void finish_rows(const float* sums, int64_t stride, const View& addend, const View& out) {
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) {
      float value = sums != nullptr ? sums[r * stride + c] : 0;
      if (!addend.empty()) value += load_float(addend.data, addend.dtype, r * addend.stride + c);
      store_float(out.data, out.dtype, r * out.stride + c, value);
    }
  }
}

void pack_scalar(const PanelPack& job, DType operand) {
  if (operand == DType::f32)
    pack<float>(job);
  else
    pack<BFloat16>(job);
}

}  // namespace sluice::gpu::host
