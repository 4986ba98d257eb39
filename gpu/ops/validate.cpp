#include "gpu/ops/validate.h"

#include <initializer_list>

namespace sluice::gpu {
namespace {

// The checks of one op: remembers its name for messages.
class Checker {
 public:
  explicit Checker(const char* op_name) : op_name_(op_name) {}

  void require(bool condition, const char* operand, const char* what) const {
    if (condition) [[likely]]
      return;
    const std::string message = std::string(op_name_) + ": " + operand + " " + what;
    SLUICE_CHECK(condition, message);
  }
  void shape(const View& view, int64_t rows, int64_t cols, const char* operand) const {
    require(view.rows >= 0 && view.cols >= 0, operand, "has a negative size");
    require(view.rows == rows && view.cols == cols, operand, "has the wrong shape");
    require(view.rows <= 1 || view.stride >= view.cols, operand, "has rows that overlap");
    require(view.data != nullptr || view.element_count() == 0, operand, "is null");
    const auto address = reinterpret_cast<uintptr_t>(view.data);
    require(address % sluice::size_bytes(view.dtype) == 0, operand, "is not aligned to its elements");
  }
  void matrix(const View& view, int64_t rows, int64_t cols, DType dtype, const char* operand) const {
    shape(view, rows, cols, operand);
    require(view.dtype == dtype, operand, "has the wrong dtype");
  }
  // Operands that may be left out are default views.
  void optional(const View& view, int64_t rows, int64_t cols, DType dtype, const char* operand) const {
    if (view.data != nullptr) matrix(view, rows, cols, dtype, operand);
  }
  void compute_dtype(DType dtype, const char* operand) const {
    require(dtype == DType::f32 || dtype == DType::bf16, operand, "is neither fp32 nor bf16");
  }
  void packed(const PackedWeight& weight, DType dtype, WeightLayout layout) const {
    require(weight.dtype == dtype, "weight", "has another dtype than the activations");
    require(weight.layout == layout, "weight", "is packed for the other direction");
    require(weight.data != nullptr || weight.size_bytes == 0, "weight", "is null");
  }

 private:
  const char* op_name_;
};

void check(const Checker& c, const RmsNormForward& op) {
  const DType dtype = op.x.dtype;
  c.compute_dtype(dtype, "x");
  c.shape(op.x, op.x.rows, op.x.cols, "x");
  c.matrix(op.weight, 1, op.x.cols, dtype, "weight");
  c.matrix(op.y, op.x.rows, op.x.cols, dtype, "y");
  c.optional(op.rstd, op.x.rows, 1, DType::f32, "rstd");
}
void check(const Checker& c, const RmsNormBackward& op) {
  const DType dtype = op.x.dtype;
  c.compute_dtype(dtype, "x");
  c.shape(op.x, op.x.rows, op.x.cols, "x");
  c.matrix(op.dy, op.x.rows, op.x.cols, dtype, "dy");
  c.matrix(op.weight, 1, op.x.cols, dtype, "weight");
  c.matrix(op.rstd, op.x.rows, 1, DType::f32, "rstd");
  c.optional(op.addend, op.x.rows, op.x.cols, dtype, "addend");
  c.matrix(op.dx, op.x.rows, op.x.cols, dtype, "dx");
  c.optional(op.dweight, 1, op.x.cols, DType::f32, "dweight");
}
void check(const Checker& c, const LinearPack& op) {
  c.compute_dtype(op.packed.dtype, "packed");
  int64_t rows = 0;
  for (const LinearPack::Source& source : op.sources) {
    const DType dtype = source.high.dtype;
    c.compute_dtype(dtype, "source");
    c.shape(source.high, source.high.rows, op.packed.cols, "source");
    c.optional(source.low, source.high.rows, op.packed.cols, DType::i16, "low half");
    c.require(source.low.data == nullptr || dtype == DType::bf16, "source", "with a low half is not bf16");
    rows += source.high.rows;
  }
  c.require(rows == op.packed.rows, "packed", "has other rows than its sources");
  c.require(op.packed.data != nullptr || op.packed.size_bytes == 0, "packed", "is null");
}
void check(const Checker& c, const LinearForward& op) {
  const DType dtype = op.x.dtype;
  c.compute_dtype(dtype, "x");
  c.packed(op.weight, dtype, WeightLayout::forward);
  c.shape(op.x, op.x.rows, op.weight.cols, "x");
  c.shape(op.y, op.x.rows, op.weight.rows, "y");
  c.require(op.y.dtype == dtype || op.y.dtype == DType::f32, "y", "is neither fp32 nor of x's dtype");
  c.optional(op.addend, op.x.rows, op.weight.rows, dtype, "addend");
}
void check(const Checker& c, const LinearBackwardInput& op) {
  const DType dtype = op.dy.dtype;
  c.compute_dtype(dtype, "dy");
  c.packed(op.weight, dtype, WeightLayout::backward);
  c.shape(op.dy, op.dy.rows, op.weight.rows, "dy");
  c.shape(op.dx, op.dy.rows, op.weight.cols, "dx");
  c.require(op.dx.dtype == DType::f32 || (op.dx.dtype == dtype && !op.accumulate), "dx",
            "must be fp32, or of dy's dtype without accumulate");
}
void check(const Checker& c, const LinearBackwardWeight& op) {
  c.compute_dtype(op.dy.dtype, "dy");
  c.shape(op.dy, op.dy.rows, op.dy.cols, "dy");
  c.matrix(op.x, op.dy.rows, op.x.cols, op.dy.dtype, "x");
  c.matrix(op.dw, op.dy.cols, op.x.cols, DType::f32, "dw");
}

// Segments lie within their rows; query rows of different segments do not overlap (they are sorted, or few).
void check_segments(const Checker& c, const AttentionSegments& segments, int64_t query_rows, int64_t key_rows,
                    bool square) {
  c.require(segments != nullptr, "segments", "are missing");
  for (const AttentionSegment& s : *segments) {
    c.require(s.query_begin >= 0 && s.query_count >= 0 && s.query_begin + s.query_count <= query_rows,
              "segments", "leave the rows of q");
    c.require(s.key_begin >= 0 && s.key_count >= s.query_count && s.key_begin + s.key_count <= key_rows,
              "segments", "leave the rows of k, or have fewer keys than queries");
    c.require(!square || (s.query_count == s.key_count && s.query_begin == s.key_begin), "segments",
              "of a gradient differ in queries and keys");
  }
}
template <class AttentionOp>
void check_attention(const Checker& c, const AttentionOp& op) {
  const AttentionShape& shape = op.shape;
  c.require(shape.head_count > 0 && shape.key_value_head_count > 0 && shape.head_dim > 0 &&
                shape.head_count % shape.key_value_head_count == 0,
            "shape", "has heads that do not divide");
  c.compute_dtype(op.q.dtype, "q");
  const int64_t query_cols = shape.head_count * shape.head_dim;
  const int64_t key_cols = shape.key_value_head_count * shape.head_dim;
  c.shape(op.q, op.q.rows, query_cols, "q");
  c.matrix(op.k, op.k.rows, key_cols, op.q.dtype, "k");
  c.matrix(op.v, op.k.rows, key_cols, op.q.dtype, "v");
  c.matrix(op.o, op.q.rows, query_cols, op.q.dtype, "o");
}
void check(const Checker& c, const AttentionForward& op) {
  check_attention(c, op);
  check_segments(c, op.segments, op.q.rows, op.k.rows, false);
  c.optional(op.lse, op.q.rows, op.shape.head_count, DType::f32, "lse");
}
void check(const Checker& c, const AttentionBackward& op) {
  check_attention(c, op);
  c.require(op.k.rows == op.q.rows, "k", "has other rows than q");
  check_segments(c, op.segments, op.q.rows, op.k.rows, true);
  c.matrix(op.lse, op.q.rows, op.shape.head_count, DType::f32, "lse");
  c.matrix(op.d_o, op.o.rows, op.o.cols, op.q.dtype, "d_o");
  c.matrix(op.dq, op.q.rows, op.q.cols, op.q.dtype, "dq");
  c.matrix(op.dk, op.k.rows, op.k.cols, op.q.dtype, "dk");
  c.matrix(op.dv, op.v.rows, op.v.cols, op.q.dtype, "dv");
}
void check(const Checker& c, const Rope& op) {
  c.compute_dtype(op.x.dtype, "x");
  c.require(op.head_dim > 0 && op.head_dim % 2 == 0, "head_dim", "is not even");
  c.require(op.x.cols % op.head_dim == 0, "x", "is not whole heads");
  c.shape(op.x, op.x.rows, op.x.cols, "x");
  c.matrix(op.positions, op.x.rows, 1, DType::i32, "positions");
  c.matrix(op.cos, op.cos.rows, op.head_dim / 2, DType::f32, "cos");
  c.matrix(op.sin, op.cos.rows, op.head_dim / 2, DType::f32, "sin");
}
void check(const Checker& c, const GatherRows& op) {
  c.shape(op.table, op.table.rows, op.table.cols, "table");
  c.matrix(op.index, op.y.rows, 1, DType::i32, "index");
  c.matrix(op.y, op.y.rows, op.table.cols, op.table.dtype, "y");
}
void check(const Checker& c, const ScatterRows& op) {
  c.shape(op.x, op.x.rows, op.x.cols, "x");
  c.matrix(op.index, op.x.rows, 1, DType::i32, "index");
  c.matrix(op.y, op.y.rows, op.x.cols, op.x.dtype, "y");
}
void check(const Checker& c, const EmbeddingBackward& op) {
  c.compute_dtype(op.dy.dtype, "dy");
  c.shape(op.dy, op.dy.rows, op.dy.cols, "dy");
  c.matrix(op.order, op.order.rows, 1, DType::i32, "order");
  c.matrix(op.begin, op.d_rows.rows + 1, 1, DType::i32, "begin");
  c.matrix(op.d_rows, op.d_rows.rows, op.dy.cols, DType::f32, "d_rows");
}
void check(const Checker& c, const SwigluForward& op) {
  c.compute_dtype(op.y.dtype, "y");
  c.shape(op.y, op.y.rows, op.y.cols, "y");
  c.matrix(op.gate_up, op.y.rows, 2 * op.y.cols, op.y.dtype, "gate_up");
}
void check(const Checker& c, const SwigluBackward& op) {
  const DType dtype = op.dy.dtype;
  c.compute_dtype(dtype, "dy");
  c.shape(op.dy, op.dy.rows, op.dy.cols, "dy");
  c.matrix(op.gate_up, op.dy.rows, 2 * op.dy.cols, dtype, "gate_up");
  c.matrix(op.d_gate_up, op.dy.rows, 2 * op.dy.cols, dtype, "d_gate_up");
  c.optional(op.y, op.dy.rows, op.dy.cols, dtype, "y");
}
void check(const Checker& c, const LogSumExpUpdate& op) {
  const int64_t rows = op.logits.rows;
  c.matrix(op.logits, rows, op.logits.cols, DType::f32, "logits");
  c.matrix(op.max, rows, 1, DType::f32, "max");
  c.matrix(op.sum, rows, 1, DType::f32, "sum");
  c.optional(op.targets, rows, 1, DType::i32, "targets");
  c.optional(op.target_logit, rows, 1, DType::f32, "target_logit");
  c.require((op.targets.data == nullptr) == (op.target_logit.data == nullptr), "targets",
            "and target_logit go together");
}
void check(const Checker& c, const TokenLoss& op) {
  const int64_t rows = op.loss.rows;
  c.matrix(op.max, rows, 1, DType::f32, "max");
  c.matrix(op.sum, rows, 1, DType::f32, "sum");
  c.matrix(op.target_logit, rows, 1, DType::f32, "target_logit");
  c.matrix(op.targets, rows, 1, DType::i32, "targets");
  c.matrix(op.weights, rows, 1, DType::f32, "weights");
  c.matrix(op.loss, rows, 1, DType::f32, "loss");
}
void check(const Checker& c, const CrossEntropyBackward& op) {
  const int64_t rows = op.logits.rows;
  c.matrix(op.logits, rows, op.logits.cols, DType::f32, "logits");
  c.matrix(op.targets, rows, 1, DType::i32, "targets");
  c.matrix(op.weights, rows, 1, DType::f32, "weights");
  c.matrix(op.max, rows, 1, DType::f32, "max");
  c.matrix(op.sum, rows, 1, DType::f32, "sum");
  c.compute_dtype(op.d_logits.dtype, "d_logits");
  c.shape(op.d_logits, rows, op.logits.cols, "d_logits");
}
void check(const Checker& c, const ArgMaxUpdate& op) {
  c.matrix(op.logits, op.logits.rows, op.logits.cols, DType::f32, "logits");
  c.matrix(op.max, op.logits.rows, 1, DType::f32, "max");
  c.matrix(op.index, op.logits.rows, 1, DType::i32, "index");
}
void check(const Checker& c, const Cast& op) {
  for (const View* view : {&op.x, &op.y})
    c.require(view->dtype == DType::f32 || view->dtype == DType::bf16 || view->dtype == DType::f16, "x or y",
              "is no floating point number");
  c.shape(op.x, op.x.rows, op.x.cols, "x");
  c.shape(op.y, op.x.rows, op.x.cols, "y");
}
void check(const Checker& c, const Add& op) {
  c.compute_dtype(op.y.dtype, "y");
  c.shape(op.y, op.y.rows, op.y.cols, "y");
  c.matrix(op.a, op.y.rows, op.y.cols, op.y.dtype, "a");
  c.matrix(op.b, op.y.rows, op.y.cols, op.y.dtype, "b");
}
void check(const Checker& c, const Scale& op) {
  c.compute_dtype(op.x.dtype, "x");
  c.shape(op.x, op.x.rows, op.x.cols, "x");
}
void check(const Checker& c, const Fill& op) {
  c.shape(op.x, op.x.rows, op.x.cols, "x");
  c.require(op.x.dtype == DType::f32 || op.x.dtype == DType::bf16 || op.value == 0, "value",
            "must be 0 for this dtype");
}
void check(const Checker& c, const JoinSplit& op) {
  c.matrix(op.high, op.y.rows, op.y.cols, DType::bf16, "high");
  c.matrix(op.low, op.y.rows, op.y.cols, DType::i16, "low");
  c.matrix(op.y, op.y.rows, op.y.cols, DType::f32, "y");
}

}  // namespace

void validate(const Op& op) {
  std::visit([&](const auto& known) { check(Checker(name(op)), known); }, op);
}

}  // namespace sluice::gpu
