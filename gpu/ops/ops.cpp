#include "gpu/ops/ops.h"

namespace sluice::gpu {
namespace {

using List = std::vector<MemoryAccess>;

List touched(const RmsNormForward& op) {
  return {reads(op.x), reads(op.weight), writes(op.y), writes(op.rstd)};
}
List touched(const RmsNormBackward& op) {
  return {reads(op.dy),     reads(op.x),   reads(op.weight),  reads(op.rstd),
          reads(op.addend), writes(op.dx), writes(op.dweight)};
}
List touched(const LinearPack& op) {
  List list{writes(op.packed.data, op.packed.size_bytes)};
  for (const LinearPack::Source& source : op.sources) {
    list.push_back(reads(source.high));
    list.push_back(reads(source.low));
  }
  return list;
}
MemoryAccess reads(const PackedWeight& weight) {
  return gpu::reads(weight.data, weight.size_bytes);
}
List touched(const LinearForward& op) {
  return {gpu::reads(op.x), reads(op.weight), gpu::reads(op.addend), writes(op.y)};
}
List touched(const LinearBackwardInput& op) {
  return {gpu::reads(op.dy), reads(op.weight), writes(op.dx)};
}
List touched(const LinearBackwardWeight& op) {
  return {gpu::reads(op.dy), gpu::reads(op.x), writes(op.dw)};
}
List touched(const AttentionForward& op) {
  return {gpu::reads(op.q), gpu::reads(op.k), gpu::reads(op.v), writes(op.o), writes(op.lse)};
}
List touched(const AttentionBackward& op) {
  return {gpu::reads(op.q),   gpu::reads(op.k), gpu::reads(op.v), gpu::reads(op.o), gpu::reads(op.lse),
          gpu::reads(op.d_o), writes(op.dq),    writes(op.dk),    writes(op.dv)};
}
List touched(const Rope& op) {
  return {writes(op.x), gpu::reads(op.positions), gpu::reads(op.cos), gpu::reads(op.sin)};
}
List touched(const GatherRows& op) {
  return {gpu::reads(op.table), gpu::reads(op.index), writes(op.y)};
}
List touched(const ScatterRows& op) {
  return {gpu::reads(op.x), gpu::reads(op.index), writes(op.y)};
}
List touched(const EmbeddingBackward& op) {
  return {gpu::reads(op.dy), gpu::reads(op.order), gpu::reads(op.begin), writes(op.d_rows)};
}
List touched(const SwigluForward& op) {
  return {gpu::reads(op.gate_up), writes(op.y)};
}
List touched(const SwigluBackward& op) {
  return {gpu::reads(op.gate_up), gpu::reads(op.dy), writes(op.d_gate_up), writes(op.y)};
}
List touched(const LogSumExpUpdate& op) {
  return {gpu::reads(op.logits), gpu::reads(op.targets), writes(op.max), writes(op.sum),
          writes(op.target_logit)};
}
List touched(const TokenLoss& op) {
  return {gpu::reads(op.max),     gpu::reads(op.sum),     gpu::reads(op.target_logit),
          gpu::reads(op.targets), gpu::reads(op.weights), writes(op.loss)};
}
List touched(const CrossEntropyBackward& op) {
  return {gpu::reads(op.logits), gpu::reads(op.targets), gpu::reads(op.weights),
          gpu::reads(op.max),    gpu::reads(op.sum),     writes(op.d_logits)};
}
List touched(const ArgMaxUpdate& op) {
  return {gpu::reads(op.logits), writes(op.max), writes(op.index)};
}
List touched(const Cast& op) {
  return {gpu::reads(op.x), writes(op.y)};
}
List touched(const Add& op) {
  return {gpu::reads(op.a), gpu::reads(op.b), writes(op.y)};
}
List touched(const Scale& op) {
  return {writes(op.x)};
}
List touched(const Fill& op) {
  return {writes(op.x)};
}
List touched(const JoinSplit& op) {
  return {gpu::reads(op.high), gpu::reads(op.low), writes(op.y)};
}

// Pairs (query, key) that a causal segment computes.
double causal_pairs(const AttentionSegments& segments) {
  double pairs = 0;
  for (const AttentionSegment& segment : *segments) {
    const double queries = static_cast<double>(segment.query_count);
    pairs +=
        queries * static_cast<double>(segment.key_count - segment.query_count) + queries * (queries + 1) / 2;
  }
  return pairs;
}

double product_flops(const View& left, int64_t inner, int64_t outer) {
  return 2.0 * static_cast<double>(left.rows) * static_cast<double>(inner) * static_cast<double>(outer);
}
template <class AttentionOp>
double attention_flops(const AttentionOp& op, double matmul_count) {
  return 2.0 * matmul_count * causal_pairs(op.segments) *
         static_cast<double>(op.shape.head_count * op.shape.head_dim);
}
template <class T>
double flops(const T&) {
  return 0;
}
double flops(const LinearForward& op) {
  return product_flops(op.x, op.weight.cols, op.weight.rows);
}
double flops(const LinearBackwardInput& op) {
  return product_flops(op.dy, op.weight.rows, op.weight.cols);
}
double flops(const LinearBackwardWeight& op) {
  return product_flops(op.x, op.x.cols, op.dy.cols);
}
double flops(const AttentionForward& op) {
  return attention_flops(op, 2);
}
double flops(const AttentionBackward& op) {
  return attention_flops(op, 5);
}

}  // namespace

const char* name(const Op& op) {
  return std::visit([](const auto& known) { return std::decay_t<decltype(known)>::kName; }, op);
}

std::vector<MemoryAccess> accesses(const Op& op) {
  List list = std::visit([](const auto& known) { return touched(known); }, op);
  std::erase_if(list, [](const MemoryAccess& access) { return access.size_bytes == 0; });
  return list;
}

double matmul_flops(const Op& op) {
  return std::visit([](const auto& known) { return flops(known); }, op);
}

}  // namespace sluice::gpu
