#pragma once

#include <algorithm>

#include "engine/base/executor.h"
#include "engine/base/math.h"
#include "gpu/view.h"

// How the row ops cut their work: by shape alone.
namespace sluice::gpu::host {

// A task's share where rows do not depend on one another: about 64 Ki elements, so that a piece of each
// operand stays in L2, and at most 64 rows.
inline int64_t rows_per_task(int64_t cols) {
  return std::clamp<int64_t>((int64_t{1} << 16) / std::max<int64_t>(cols, 1), 1, 64);
}

// A part of a matrix.
struct Window {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t col_begin = 0;
  int64_t col_end = 0;
};

// Makes contiguous matrices of equal shape into single rows, so that their shape does not matter to the
// loops.
template <class... Views>
void flatten(Views&... views) {
  if (!(views.contiguous() && ...)) return;
  ((views = View(views.data, views.dtype, 1, views.element_count())), ...);
}

// Calls body(Window) over all of a matrix, for ops without any reduction.
template <class Body>
void run_windows(Executor& executor, int64_t rows, int64_t cols, const Body& body) {
  constexpr int64_t kElements = int64_t{1} << 15;
  if (rows == 0 || cols == 0) return;
  const int64_t height = std::max<int64_t>(kElements / cols, 1);
  const int64_t across = divide_up(cols, kElements);
  executor.run(divide_up(rows, height) * across, [&](int64_t task, int) {
    const int64_t row = task / across * height;
    const int64_t col = task % across * kElements;
    body(Window{row, std::min(row + height, rows), col, std::min(col + kElements, cols)});
  });
}

}  // namespace sluice::gpu::host
