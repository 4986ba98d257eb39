#include <cmath>

#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

void run(const SwigluForward& op) {
  for (int64_t t = 0; t < op.y.rows; ++t) {
    for (int64_t f = 0; f < op.y.cols; ++f) {
      const double gate = load(op.gate_up, t, f);
      store(op.y, t, f, gate * sigmoid(gate) * load(op.gate_up, t, op.y.cols + f));
    }
  }
}

// silu'(x) = s (1 + x (1 - s)) with s = sigmoid(x).
void run(const SwigluBackward& op) {
  const int64_t width = op.dy.cols;
  for (int64_t t = 0; t < op.dy.rows; ++t) {
    for (int64_t f = 0; f < width; ++f) {
      const double gate = load(op.gate_up, t, f);
      const double up = load(op.gate_up, t, width + f);
      const double dy = load(op.dy, t, f);
      const double s = sigmoid(gate);
      store(op.d_gate_up, t, f, dy * up * s * (1 + gate * (1 - s)));
      store(op.d_gate_up, t, width + f, dy * gate * s);
      if (!op.y.empty()) store(op.y, t, f, gate * s * up);
    }
  }
}

}  // namespace sluice::gpu::reference::kernels
