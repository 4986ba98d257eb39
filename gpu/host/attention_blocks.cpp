#include "gpu/host/attention_blocks.h"

#include <cstring>

namespace sluice::gpu::host {

void pack_panels(const PanelKernel& kernel, const View& source, PackOrder order, Panels& panels) {
  const bool by_row = order == PackOrder::depth_is_row;
  panels.depth = by_row ? source.rows : source.cols;
  panels.cols = by_row ? source.cols : source.rows;
  panels.panel_bytes = panel_bytes(kernel.operand, panels.depth, kPanelWidth);
  const PackRows rows{source, {}};
  std::byte* panel = panels.data;
  for (int64_t col = 0; col < panels.cols; col += kPanelWidth, panel += panels.panel_bytes)
    kernel.pack({.sources = {&rows, 1},
                 .order = order,
                 .depth = panels.depth,
                 .col_begin = col,
                 .col_count = std::min(kPanelWidth, panels.cols - col),
                 .width = kPanelWidth,
                 .panel = panel});
}

void multiply_panels(const PanelKernel& kernel, const Product& product, const Panels& panels) {
  Tile tile;
  tile.width = tile.cols = kPanelWidth;
  tile.depth = product.depth;
  tile.left = product.left;
  tile.out_stride = tile.addend_stride = product.out_stride;
  const std::byte* panel = panels.data;
  for (int64_t col = 0; col < product.cols; col += kPanelWidth, panel += panels.panel_bytes) {
    tile.panel = panel;
    for (int64_t row = 0; row < product.rows; row += kTileRows) {
      tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, product.rows - row));
      tile.left.data = product.left.data + row * product.left.row_stride_bytes;
      float* out = product.out + row * product.out_stride + col;
      tile.out = out;
      tile.addend = product.add ? out : nullptr;
      kernel.multiply(tile);
    }
  }
}

LeftOperand left_rows(const PanelKernel& kernel, const View& rows, float* widened) {
  if (rows.dtype == kernel.operand)
    return {rows.data, rows.stride * static_cast<int64_t>(size_bytes(rows.dtype)), 4};
  for (int64_t r = 0; r < rows.rows; ++r)
    widen_row(rows.row<uint16_t>(r), rows.cols, widened + r * rows.cols);
  return {reinterpret_cast<const std::byte*>(widened), rows.cols * 4, 4};
}

void zero_uncovered(const View& view, const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  if (view.empty()) return;
  std::vector<std::pair<int64_t, int64_t>> sorted = ranges;
  std::sort(sorted.begin(), sorted.end());
  sorted.emplace_back(view.rows, 0);
  int64_t row = 0;
  for (const auto& [begin, count] : sorted) {
    for (; row < begin; ++row)
      std::memset(view.data + row * view.stride * static_cast<int64_t>(size_bytes(view.dtype)), 0,
                  static_cast<size_t>(view.cols) * size_bytes(view.dtype));
    row = std::max(row, begin + count);
  }
}

}  // namespace sluice::gpu::host
