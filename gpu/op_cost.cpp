#include "gpu/op_cost.h"

namespace sluice::gpu {
namespace {

double bytes(const View& view) {
  return static_cast<double>(view.element_count()) * static_cast<double>(size_bytes(view.dtype));
}
double bytes(const PackedWeight& weight) {
  return static_cast<double>(weight.rows) * static_cast<double>(weight.cols) *
         static_cast<double>(size_bytes(weight.dtype));
}
template <class... Operands>
double once(const Operands&... operands) {
  return (bytes(operands) + ...);
}
// What is added to is read before it is written.
double written(const View& view, bool accumulate) {
  return accumulate ? 2 * bytes(view) : bytes(view);
}
double elements(const View& view) {
  return static_cast<double>(view.element_count());
}

// An overload each, so an op without one does not compile. The flops of matrix products are
// matmul_flops(op)'s to count; these are the others, read off the formulas in gpu/ops/*.h.

// x^2, its sum; x * rstd, times weight.
OpCost of(const RmsNormForward& op) {
  return {.flops = 4 * elements(op.x), .bytes = once(op.x, op.weight, op.y, op.rstd)};
}
// With n = x * rstd, g = dy * weight: n, g, n * g and its sum; n * mean, g - that, times rstd; then the
// addend, and dy * n and its sum for dweight.
OpCost of(const RmsNormBackward& op) {
  return {
      .flops = 7 * elements(op.x) + elements(op.addend) + (op.dweight.cols > 0 ? 2 * elements(op.x) : 0),
      .bytes = once(op.dy, op.x, op.weight, op.rstd, op.addend, op.dx) + written(op.dweight, op.accumulate)};
}
OpCost of(const LinearPack& op) {
  OpCost result{.bytes = bytes(op.packed)};
  for (const LinearPack::Source& source : op.sources) result.bytes += once(source.high, source.low);
  return result;
}
OpCost of(const LinearForward& op) {
  return {.flops = elements(op.addend), .rate = op.x.dtype, .bytes = once(op.x, op.weight, op.addend, op.y)};
}
OpCost of(const LinearBackwardInput& op) {
  return {.rate = op.dy.dtype, .bytes = once(op.dy, op.weight) + written(op.dx, op.accumulate)};
}
OpCost of(const LinearBackwardWeight& op) {
  return {.rate = op.dy.dtype, .bytes = once(op.dy, op.x) + written(op.dw, op.accumulate)};
}
// As FlashAttention does it (Dao 2023, arXiv:2307.08691): scores stay on the chip. The softmax between the
// products is not counted.
OpCost of(const AttentionForward& op) {
  return {.rate = op.q.dtype, .bytes = once(op.q, op.k, op.v, op.o, op.lse)};
}
OpCost of(const AttentionBackward& op) {
  return {.rate = op.q.dtype, .bytes = once(op.q, op.k, op.v, op.o, op.lse, op.d_o, op.dq, op.dk, op.dv)};
}
// Two products and a sum for each element; each row reads its angles once for all heads.
OpCost of(const Rope& op) {
  const int64_t angles = op.x.rows * (op.head_dim / 2);
  return {.flops = 3 * elements(op.x),
          .bytes = 2 * bytes(op.x) + bytes(op.positions) + 2.0 * 4 * static_cast<double>(angles)};
}
OpCost of(const GatherRows& op) {
  return {.bytes = bytes(op.index) + 2 * bytes(op.y)};
}
OpCost of(const ScatterRows& op) {
  return {.bytes = bytes(op.index) + 2 * bytes(op.x)};
}
OpCost of(const EmbeddingBackward& op) {
  const double tokens = elements(op.order) * static_cast<double>(op.dy.cols);
  return {.flops = tokens,
          .bytes = once(op.order, op.begin) + tokens * static_cast<double>(size_bytes(op.dy.dtype)) +
                   written(op.d_rows, op.accumulate)};
}
// -gate, exp, 1 +, division; times up.
OpCost of(const SwigluForward& op) {
  return {.flops = 5 * elements(op.y), .bytes = once(op.gate_up, op.y)};
}
// The sigmoid's 4; silu 1, its slope s (1 + x (1 - s)) 4; d_gate 2, d_up 1; y once more 1.
OpCost of(const SwigluBackward& op) {
  return {.flops = 12 * elements(op.dy) + elements(op.y),
          .bytes = once(op.gate_up, op.dy, op.d_gate_up, op.y)};
}
// Maximum, difference, exp, sum.
OpCost of(const LogSumExpUpdate& op) {
  return {.flops = 4 * elements(op.logits),
          .bytes = once(op.logits, op.targets) + written(op.max, !op.first) + written(op.sum, !op.first) +
                   written(op.target_logit, !op.first)};
}
// log, sum, difference, product.
OpCost of(const TokenLoss& op) {
  return {.flops = 4 * elements(op.loss),
          .bytes = once(op.max, op.sum, op.target_logit, op.targets, op.weights, op.loss)};
}
// Difference, exp, division, product.
OpCost of(const CrossEntropyBackward& op) {
  return {.flops = 4 * elements(op.logits),
          .bytes = once(op.logits, op.targets, op.weights, op.max, op.sum, op.d_logits)};
}
OpCost of(const ArgMaxUpdate& op) {
  return {.flops = elements(op.logits),
          .bytes = bytes(op.logits) + written(op.max, !op.first) + written(op.index, !op.first)};
}
OpCost of(const Cast& op) {
  return {.bytes = once(op.x, op.y)};
}
OpCost of(const Add& op) {
  return {.flops = elements(op.y), .bytes = once(op.a, op.b, op.y)};
}
OpCost of(const Scale& op) {
  return {.flops = elements(op.x), .bytes = 2 * bytes(op.x)};
}
OpCost of(const Fill& op) {
  return {.bytes = bytes(op.x)};
}
OpCost of(const JoinSplit& op) {
  return {.bytes = once(op.high, op.low, op.y)};
}

}  // namespace

OpCost cost(const Op& op) {
  OpCost result = std::visit([](const auto& known) { return of(known); }, op);
  result.flops += matmul_flops(op);
  return result;
}

}  // namespace sluice::gpu
