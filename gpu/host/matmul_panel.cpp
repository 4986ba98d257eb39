#include "gpu/host/matmul_panel.h"

#include <algorithm>

#include "engine/base/math.h"

namespace sluice::gpu::host {
namespace {

const std::byte* advance(const std::byte* data, int64_t bytes) {
  return data + bytes;
}

// Whole vectors, and a line more: rows that lie a power of two apart would share the same few cache sets.
int64_t left_stride_bytes(DType operand, int64_t depth) {
  return round_up(depth * static_cast<int64_t>(size_bytes(operand)), int64_t{64}) + 64;
}

}  // namespace

void PanelMatmul::pack(const PackJob& job) const {
  kernel_.pack({.sources = job.sources,
                .order = job.order,
                .round_to_bf16 = job.round_to_bf16,
                .depth = job.depth,
                .col_begin = job.col_begin,
                .col_count = job.col_count,
                .width = kWidth,
                .panel = job.block});
}

size_t PanelMatmul::product_scratch_bytes(int64_t depth, int64_t max_rows) const {
  return depth > kDepthBlock ? static_cast<size_t>(max_rows * kWidth) * sizeof(float) : 0;
}

void PanelMatmul::multiply(const BlockProduct& product) const {
  const int64_t group = kernel_.operand == DType::bf16 ? 2 : 1;  // depths that one step takes
  float* partials = reinterpret_cast<float*>(product.scratch);
  Tile tile;
  tile.width = kWidth;
  tile.addend_dtype = product.addend.dtype;
  tile.addend_stride = product.addend.stride;
  int64_t begin = 0;
  do {  // once for a depth of 0: the result is the addend or 0
    const bool first = begin == 0;
    const bool last = begin + kDepthBlock >= product.depth;
    tile.depth = std::min(kDepthBlock, product.depth - begin);
    tile.panel = advance(product.block, static_cast<int64_t>(panel_bytes(kernel_.operand, begin, kWidth)));
    tile.left = product.left;
    const std::byte* left = advance(product.left.data, begin / group * product.left.depth_stride_bytes);
    for (int64_t row = 0; row < product.row_count; row += kTileRows) {
      tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, product.row_count - row));
      tile.left.data = advance(left, row * product.left.row_stride_bytes);
      tile.partial = first ? nullptr : partials + row * kWidth;
      const bool add = last && !product.addend.empty();
      tile.addend = add ? product.addend.data + row * product.addend.stride *
                                                    static_cast<int64_t>(size_bytes(product.addend.dtype))
                        : nullptr;
      tile.cols = last ? product.out.cols : kWidth;
      tile.out_dtype = last ? product.out.dtype : DType::f32;
      tile.out_stride = last ? product.out.stride : kWidth;
      tile.out =
          last
              ? static_cast<void*>(product.out.data + row * product.out.stride *
                                                          static_cast<int64_t>(size_bytes(product.out.dtype)))
              : static_cast<void*>(partials + row * kWidth);
      kernel_.multiply(tile);
    }
    begin += kDepthBlock;
  } while (begin < product.depth);
}

size_t PanelMatmul::left_bytes(int64_t depth) const {
  return static_cast<size_t>(left_stride_bytes(kernel_.operand, depth) * kLeftRows);
}

LeftOperand PanelMatmul::pack_left(const View& source, std::byte* out) const {
  const int64_t stride = left_stride_bytes(kernel_.operand, source.rows);
  kernel_.turn(source, out, stride);
  return {out, stride, 4};
}

}  // namespace sluice::gpu::host
