#include "gpu/host/attention_blocks.h"

#include <cstring>

namespace sluice::gpu::host {

void pack_panels(const PanelKernel& kernel, std::span<const PackRows> sources, PackOrder order,
                 Panels& panels) {
  int64_t rows = 0;
  for (const PackRows& source : sources) rows += source.high.rows;
  const bool by_row = order == PackOrder::depth_is_row;
  panels.depth = by_row ? rows : sources[0].high.cols;
  panels.cols = by_row ? sources[0].high.cols : rows;
  panels.panel_bytes = panel_bytes(kernel.operand, panels.depth, kPanelWidth);
  std::byte* panel = panels.data;
  for (int64_t col = 0; col < panels.cols; col += kPanelWidth, panel += panels.panel_bytes)
    kernel.pack({.sources = sources,
                 .order = order,
                 .depth = panels.depth,
                 .col_begin = col,
                 .col_count = std::min(kPanelWidth, panels.cols - col),
                 .width = kPanelWidth,
                 .panel = panel});
}

namespace {

void multiply_tile(const PanelKernel& kernel, const Product& product, const Panels& panels,
                   const RowsPart& part, int64_t row, int64_t col) {
  float* out = part.out + row * product.out_stride + col;
  Tile tile;
  tile.width = tile.cols = kPanelWidth;
  tile.panel = panels.data + static_cast<size_t>(col / kPanelWidth) * panels.panel_bytes;
  tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, part.rows - row));
  tile.left = part.left;
  tile.left.data += row * part.left.row_stride_bytes;
  tile.depth = product.depth;
  if (product.period > 0 && product.period % kTileRows == 0)  // so the tile's rows have ascending limits
    tile.depth = std::min(product.depth, product.first_zero + (row + tile.rows - 1) % product.period);
  tile.out = out;
  tile.addend = product.add ? out : nullptr;
  tile.out_stride = tile.addend_stride = product.out_stride;
  kernel.multiply(tile);
}

}  // namespace

void multiply_panels(const PanelKernel& kernel, const Product& product, const Panels& panels) {
  for (int64_t col = 0; col < product.cols; col += kPanelWidth)
    for (const RowsPart& part : product.parts)
      for (int64_t row = 0; row < part.rows; row += kTileRows)
        multiply_tile(kernel, product, panels, part, row, col);
}

void multiply_rows(const PanelKernel& kernel, const Product& product, const Panels& panels) {
  for (const RowsPart& part : product.parts)
    for (int64_t row = 0; row < part.rows; row += kTileRows)
      for (int64_t col = 0; col < product.cols; col += kPanelWidth)
        multiply_tile(kernel, product, panels, part, row, col);
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
