#include <cstring>

#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {
namespace {

void copy_row(const View& from, int64_t from_row, const View& to, int64_t to_row) {
  SLUICE_CHECK(0 <= from_row && from_row < from.rows && 0 <= to_row && to_row < to.rows);
  std::memcpy(to.row_range(to_row, to_row + 1).data, from.row_range(from_row, from_row + 1).data,
              static_cast<size_t>(from.cols) * size_bytes(from.dtype));
}

}  // namespace

void run(const GatherRows& op) {
  if (op.y.cols == 0) return;
  for (int64_t t = 0; t < op.y.rows; ++t) copy_row(op.table, load_index(op.index, t), op.y, t);
}

void run(const ScatterRows& op) {
  if (op.x.cols == 0) return;
  for (int64_t t = 0; t < op.x.rows; ++t) copy_row(op.x, t, op.y, load_index(op.index, t));
}

void run(const EmbeddingBackward& op) {
  for (int64_t u = 0; u < op.d_rows.rows; ++u) {
    const int64_t end = load_index(op.begin, u + 1);
    for (int64_t c = 0; c < op.d_rows.cols; ++c) {
      double sum = op.accumulate ? load(op.d_rows, u, c) : 0;
      for (int64_t i = load_index(op.begin, u); i < end; ++i) sum += load(op.dy, load_index(op.order, i), c);
      store(op.d_rows, u, c, sum);
    }
  }
}

}  // namespace sluice::gpu::reference::kernels
