#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/host/matmul.h"

// The innermost loops of matmul and attention, written once per instruction set. b is packed in a panel:
// [depth][width] fp32, or for bf16 [depth / 2][width][2] with an odd depth padded by zeros; columns beyond
// the source are zero. width is 16, 32 or 48.
namespace sluice::gpu::host {

struct PanelPack {
  std::span<const PackRows> sources;
  PackOrder order = PackOrder::depth_is_row;
  bool round_to_bf16 = false;  // fp32 kernels only
  int64_t depth_begin = 0;
  int64_t depth = 0;
  int64_t col_begin = 0;
  int64_t col_count = 0;  // at most width
  int64_t width = 0;
  std::byte* panel = nullptr;
};

// c = a b (+ partial) (+ addend), rows x cols with at most kTileRows rows and `width` columns.
constexpr int kTileRows = 8;
struct Tile {
  LeftOperand left;
  int rows = 0;
  int64_t depth = 0;
  const std::byte* panel = nullptr;
  int64_t width = 0;
  int64_t cols = 0;
  const float* partial = nullptr;  // the sum over earlier depths, rows of `width`; or null
  const void* addend = nullptr;    // or null
  DType addend_dtype = DType::f32;
  int64_t addend_stride = 0;  // elements
  void* out = nullptr;
  DType out_dtype = DType::f32;
  int64_t out_stride = 0;
};

struct PanelKernel {
  const char* name = nullptr;
  DType operand = DType::f32;
  void (*pack)(const PanelPack& job) = nullptr;
  // out[c][r] = source[r][c] in the operand's dtype, `stride_bytes` (a multiple of 64) from row to row of
  // out: a left operand whose depths lie side by side.
  void (*turn)(const View& source, std::byte* out, int64_t stride_bytes) = nullptr;
  void (*multiply)(const Tile& tile) = nullptr;
};

// Runs everywhere (Highway: SSE4 to AVX-512), fp32.
const PanelKernel& generic_panel();
// Need AVX-512 F, BW, DQ, VL; the second AVX512_BF16 as well.
const PanelKernel& avx512_panel();
const PanelKernel& avx512_bf16_panel();

// Elements of a packed panel of this depth, in bytes.
inline size_t panel_bytes(DType operand, int64_t depth, int64_t width) {
  const int64_t even = operand == DType::bf16 ? (depth + 1) / 2 * 2 : depth;
  return static_cast<size_t>(even * width) * size_bytes(operand);
}

// Rows of tensors that stand one above the other.
class StackedRows {
 public:
  explicit StackedRows(std::span<const PackRows> sources) : sources_(sources) {}
  struct Row {
    const std::byte* high = nullptr;
    const int16_t* low = nullptr;
    DType dtype = DType::f32;
  };
  Row operator[](int64_t index) const {
    size_t source = 0;
    while (index >= sources_[source].high.rows) index -= sources_[source++].high.rows;
    const PackRows& rows = sources_[source];
    Row row{rows.high.data + index * rows.high.stride * static_cast<int64_t>(size_bytes(rows.high.dtype)),
            nullptr, rows.high.dtype};
    if (rows.low.data != nullptr)
      row.low = reinterpret_cast<const int16_t*>(rows.low.data) + index * rows.low.stride;
    return row;
  }

 private:
  std::span<const PackRows> sources_;
};

}  // namespace sluice::gpu::host
