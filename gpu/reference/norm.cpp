#include <cmath>
#include <vector>

#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {

void run(const RmsNormForward& op) {
  const int64_t cols = op.x.cols;
  for (int64_t t = 0; t < op.x.rows; ++t) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) squares += load(op.x, t, c) * load(op.x, t, c);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + op.epsilon);
    for (int64_t c = 0; c < cols; ++c) {
      const double normal = rounded(load(op.x, t, c) * rstd, op.x.dtype);
      store(op.y, t, c, normal * load(op.weight, 0, c));
    }
    if (!op.rstd.empty()) store(op.rstd, t, 0, rstd);
  }
}

// With n = x rstd: d n = dy weight, dx = rstd (dn - n mean(dn n)), dweight = sum of dy n.
void run(const RmsNormBackward& op) {
  const int64_t cols = op.x.cols;
  std::vector<double> dweight(static_cast<size_t>(cols), 0.0);
  for (int64_t t = 0; t < op.x.rows; ++t) {
    const double rstd = load(op.rstd, t, 0);
    double dot = 0;
    for (int64_t c = 0; c < cols; ++c)
      dot += load(op.dy, t, c) * load(op.weight, 0, c) * load(op.x, t, c) * rstd;
    const double mean = dot / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const double dy = load(op.dy, t, c);
      const double normal = load(op.x, t, c) * rstd;
      const double addend = op.addend.empty() ? 0 : load(op.addend, t, c);
      dweight[static_cast<size_t>(c)] += dy * normal;
      store(op.dx, t, c, addend + rstd * (dy * load(op.weight, 0, c) - normal * mean));
    }
  }
  if (op.dweight.empty()) return;
  for (int64_t c = 0; c < cols; ++c) {
    const double before = op.accumulate ? load(op.dweight, 0, c) : 0;
    store(op.dweight, 0, c, before + dweight[static_cast<size_t>(c)]);
  }
}

}  // namespace sluice::gpu::reference::kernels
