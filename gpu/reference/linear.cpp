#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {
namespace {

View matrix_of(const PackedWeight& weight) {
  return View(weight.data, weight.dtype, weight.rows, weight.cols);
}

}  // namespace

void run(const LinearPack& op) {
  const View packed = matrix_of(op.packed);
  int64_t n = 0;
  for (const LinearPack::Source& source : op.sources) {
    for (int64_t row = 0; row < source.high.rows; ++row, ++n) {
      for (int64_t k = 0; k < packed.cols; ++k) {
        const bool joined = !source.low.empty() && packed.dtype == DType::f32;
        const double value = joined ? join(source.high.row<BFloat16>(row)[k], source.low.row<int16_t>(row)[k])
                                    : load(source.high, row, k);
        store(packed, n, k, value);
      }
    }
  }
}

void run(const LinearForward& op) {
  const View weight = matrix_of(op.weight);
  for (int64_t t = 0; t < op.x.rows; ++t) {
    for (int64_t n = 0; n < weight.rows; ++n) {
      double sum = op.addend.empty() ? 0 : load(op.addend, t, n);
      for (int64_t k = 0; k < weight.cols; ++k) sum += load(op.x, t, k) * load(weight, n, k);
      store(op.y, t, n, sum);
    }
  }
}

void run(const LinearBackwardInput& op) {
  const View weight = matrix_of(op.weight);
  for (int64_t t = 0; t < op.dy.rows; ++t) {
    for (int64_t k = 0; k < weight.cols; ++k) {
      double sum = op.accumulate ? load(op.dx, t, k) : 0;
      for (int64_t n = 0; n < weight.rows; ++n) sum += load(op.dy, t, n) * load(weight, n, k);
      store(op.dx, t, k, sum);
    }
  }
}

void run(const LinearBackwardWeight& op) {
  for (int64_t n = 0; n < op.dw.rows; ++n) {
    for (int64_t k = 0; k < op.dw.cols; ++k) {
      double sum = op.accumulate ? load(op.dw, n, k) : 0;
      for (int64_t t = 0; t < op.dy.rows; ++t) sum += load(op.dy, t, n) * load(op.x, t, k);
      store(op.dw, n, k, sum);
    }
  }
}

}  // namespace sluice::gpu::reference::kernels
