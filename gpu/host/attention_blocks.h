#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "engine/base/math.h"
#include "gpu/host/attention_rows.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/panel.h"
#include "gpu/ops/attention.h"
#include "gpu/ops/ops.h"

// What forward and backward attention share: fixed sizes, scratch, and products on panels.
namespace sluice::gpu::host {

// A block is some queries of all query heads of one key head: about 64 rows (more share one pass over K and
// V, fewer keep their scores in L2). The number decides the order in which dK and dV are summed, so it
// depends on the shape alone; a change needs a new kernel table id.
constexpr int64_t kMaxQueries = 64;
inline int64_t block_queries(const AttentionShape& shape) {
  const int64_t group = shape.head_count / shape.key_value_head_count;
  return std::clamp<int64_t>(kMaxQueries / group / 8 * 8, 8, kMaxQueries);
}
inline int64_t block_rows(const AttentionShape& shape) {
  return shape.head_count / shape.key_value_head_count * block_queries(shape);
}
constexpr int64_t kPanelWidth = 32;
constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.693147180559945309417f;

// Keys padded to whole panels, plus a line, so that rows of scores do not all fall into the same cache sets.
inline int64_t score_stride(int64_t key_count) {
  return round_up(key_count, kPanelWidth) + 16;
}

// Hands out aligned pieces of a worker's scratch, or (no memory) counts them.
class ScratchCutter {
 public:
  explicit ScratchCutter(std::byte* begin) : begin_(begin) {}
  template <class T = std::byte>
  T* take(int64_t count) {
    T* piece = begin_ != nullptr ? reinterpret_cast<T*>(begin_ + used_) : nullptr;
    used_ += round_up(static_cast<size_t>(count) * sizeof(T), kScratchAlignment);
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* begin_;
  size_t used_ = 0;
};

// b of a product: panels of kPanelWidth columns, one behind the other.
struct Panels {
  std::byte* data = nullptr;
  int64_t depth = 0;
  int64_t cols = 0;
  size_t panel_bytes = 0;

  static Panels take(ScratchCutter& scratch, DType operand, int64_t depth, int64_t cols) {
    Panels panels{nullptr, depth, cols, host::panel_bytes(operand, depth, kPanelWidth)};
    const int64_t count = divide_up(cols, kPanelWidth);
    panels.data = scratch.take(count * static_cast<int64_t>(panels.panel_bytes));
    return panels;
  }
};

// b[d][c] = M[d][c] or M[c][d], where M are the sources one above the other; the panels' depth and columns
// become M's.
void pack_panels(const PanelKernel& kernel, std::span<const PackRows> sources, PackOrder order,
                 Panels& panels);

// Rows of a product with a common right side; fp32 output, whole panels wide.
struct RowsPart {
  LeftOperand left;
  int64_t rows = 0;
  float* out = nullptr;
};
struct Product {
  std::span<const RowsPart> parts;
  int64_t depth = 0;
  int64_t cols = 0;  // rounded up to whole panels
  bool add = false;
  int64_t out_stride = 0;
  // Row r has zeros on the left from depth first_zero + r % period on; a period of 0: none known.
  int64_t first_zero = 0;
  int64_t period = 0;
};
// Panel by panel, each over all rows: for panels that stay in the cache meanwhile.
void multiply_panels(const PanelKernel& kernel, const Product& product, const Panels& panels);
// Rows outermost: for few, short panels, that all stay.
void multiply_rows(const PanelKernel& kernel, const Product& product, const Panels& panels);

// Rows of a view as left operand; where the kernel multiplies fp32 and the view is bf16, through `widened`.
LeftOperand left_rows(const PanelKernel& kernel, const View& rows, float* widened);

inline View head(const View& view, int64_t index, int64_t head_dim) {
  return view.col_range(index * head_dim, (index + 1) * head_dim);
}

inline const PanelKernel& attention_kernel(DType dtype, const PanelKernel* chosen) {
  return chosen != nullptr ? *chosen : kernel_table().attention(dtype);
}

// Asks for rows that the next block reads or writes: each head's part of a row is a few lines far from the
// next row's, which the processor does not foresee.
template <int write>
void prefetch_rows(const View& rows) {
  const int64_t row_bytes = rows.cols * static_cast<int64_t>(size_bytes(rows.dtype));
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::byte* row = rows.data + r * rows.stride * static_cast<int64_t>(size_bytes(rows.dtype));
    for (int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(row + i, write);
  }
}

// Fills rows that no range covers with zeros. Ranges are (begin, count).
void zero_uncovered(const View& view, const std::vector<std::pair<int64_t, int64_t>>& ranges);

}  // namespace sluice::gpu::host
