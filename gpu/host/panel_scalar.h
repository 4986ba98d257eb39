#pragma once

#include "engine/base/float_bits.h"
#include "gpu/host/panel.h"

// Packing and finishing of panels element by element: what every kernel does at ragged edges.
namespace sluice::gpu::host {

// One element as fp32.
inline float load_float(const StackedRows::Row& row, int64_t col) {
  if (row.dtype == DType::f32) return reinterpret_cast<const float*>(row.high)[col];
  const BFloat16 high = reinterpret_cast<const BFloat16*>(row.high)[col];
  return row.low != nullptr ? join(high, row.low[col]) : to_float(high);
}

// One element as bf16: an fp32 is rounded to nearest even; of a split master this is the high half.
inline BFloat16 load_bfloat16(const StackedRows::Row& row, int64_t col) {
  if (row.dtype == DType::f32) return to_bfloat16(reinterpret_cast<const float*>(row.high)[col]);
  return reinterpret_cast<const BFloat16*>(row.high)[col];
}

inline float load_float(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[index];
  return to_float(static_cast<const BFloat16*>(data)[index]);
}

inline void store_float(void* data, DType dtype, int64_t index, float value) {
  if (dtype == DType::f32)
    static_cast<float*>(data)[index] = value;
  else
    static_cast<BFloat16*>(data)[index] = to_bfloat16(value);
}

// Columns [col_begin, width) and depths [0, depth) of the panel, for either operand.
void pack_scalar(const PanelPack& job, DType operand);

// Rows of the sources as plain rows [depth][col_count] in the operand's dtype; width is not used.
void copy_rows(const PanelPack& job, DType operand);
// out[c][r] = source[r][c] in the operand's dtype; rows of out are stride_bytes apart.
void copy_transposed(const View& source, DType operand, std::byte* out, int64_t stride_bytes);
// out = sums (+ addend); no sums: 0.
void finish_rows(const float* sums, int64_t stride, const View& addend, const View& out);

// out = sums (+ addend); `sums` is rows x stride.
inline void finish_tile(const Tile& tile, const float* sums, int64_t stride) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t c = 0; c < tile.cols; ++c) {
      float value = sums[r * stride + c];
      if (tile.addend != nullptr)
        value += load_float(tile.addend, tile.addend_dtype, r * tile.addend_stride + c);
      store_float(tile.out, tile.out_dtype, r * tile.out_stride + c, value);
    }
  }
}

}  // namespace sluice::gpu::host
