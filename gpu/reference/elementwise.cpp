#include "gpu/reference/element.h"
#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference::kernels {
namespace {

template <class ElementValue>
void for_each_element(const View& y, const ElementValue& value) {
  for (int64_t row = 0; row < y.rows; ++row)
    for (int64_t col = 0; col < y.cols; ++col) store(y, row, col, value(row, col));
}

}  // namespace

void run(const Cast& op) {
  for_each_element(op.y, [&](int64_t row, int64_t col) { return load(op.x, row, col); });
}

// A double holds sums and products of two fp32 well enough that rounding to fp32 is the same as adding in
// fp32.
void run(const Add& op) {
  for_each_element(op.y,
                   [&](int64_t row, int64_t col) { return load(op.a, row, col) + load(op.b, row, col); });
}

void run(const Scale& op) {
  for_each_element(op.x, [&](int64_t row, int64_t col) { return load(op.x, row, col) * op.factor; });
}

void run(const Fill& op) {
  for_each_element(op.x, [&](int64_t, int64_t) { return op.value; });
}

void run(const JoinSplit& op) {
  for (int64_t row = 0; row < op.y.rows; ++row)
    for (int64_t col = 0; col < op.y.cols; ++col)
      op.y.row<float>(row)[col] = join(op.high.row<BFloat16>(row)[col], op.low.row<int16_t>(row)[col]);
}

}  // namespace sluice::gpu::reference::kernels
