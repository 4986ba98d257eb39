#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/dtype.h"
#include "gpu/view.h"

// The host's matmul kernels: c = a b (+ addend), where b was packed before, in blocks of columns. Everything
// here is called from tasks of the executor, works on one thread and allocates nothing but what a library
// does by itself. Each element of c is one sum over the depth in an order that depends on the depth alone: so
// rows may be chunked, and blocks shared out, without changing a bit.
namespace sluice::gpu::host {

// Rows to be packed, of one of the tensors that stand above one another. With `low`, an fp32 master in
// halves.
struct PackRows {
  View high;  // fp32 or bf16
  View low;   // int16, or empty
};

// Which way the packed operand reads its source M: b[d][c] = M[d][c] or M[c][d].
enum class PackOrder { depth_is_row, depth_is_col };

struct PackJob {
  std::span<const PackRows> sources;  // one above the other: together the rows of M
  PackOrder order = PackOrder::depth_is_row;
  bool round_to_bf16 = false;  // fp32 kernels: round each element to bf16 (split: take the high half)
  int64_t depth = 0;
  int64_t col_begin = 0;  // of b; a block's begin
  int64_t col_count = 0;
  std::byte* block = nullptr;
  std::byte* scratch = nullptr;  // pack_scratch_bytes(depth)
};

// The left operand: a(row, depth) lies at data + row * row_stride + depth * depth_stride (bytes). For bf16,
// depth counts pairs: elements 2 * depth and 2 * depth + 1 lie side by side.
struct LeftOperand {
  const std::byte* data = nullptr;
  int64_t row_stride_bytes = 0;
  int64_t depth_stride_bytes = 4;
};

struct BlockProduct {
  LeftOperand left;
  int64_t row_count = 0;
  int64_t depth = 0;
  const std::byte* block = nullptr;
  View addend;                   // (row_count, cols) fp32 or bf16, or empty; may be out
  View out;                      // (row_count, cols) fp32 or bf16
  std::byte* scratch = nullptr;  // product_scratch_bytes(depth, row_count)
};

// One way to multiply. Immutable, thread-safe, lives as long as the process.
class MatmulKernel {
 public:
  virtual ~MatmulKernel() = default;
  virtual const char* name() const = 0;
  // What it multiplies: fp32 or bf16. Sums are fp32.
  virtual DType operand() const = 0;
  virtual int64_t block_cols() const = 0;
  // Of a whole block; blocks stand one behind the other.
  virtual size_t block_bytes(int64_t depth) const = 0;
  virtual size_t pack_scratch_bytes(int64_t depth) const = 0;
  virtual void pack(const PackJob& job) const = 0;
  // row_count is at most max_rows.
  virtual size_t product_scratch_bytes(int64_t depth, int64_t max_rows) const = 0;
  virtual void multiply(const BlockProduct& product) const = 0;
  // Packs the transpose of source (depth, rows) as a left operand with at most kLeftRows rows; `out` has
  // left_bytes(depth) bytes.
  static constexpr int64_t kLeftRows = 96;
  virtual size_t left_bytes(int64_t depth) const = 0;
  virtual LeftOperand pack_left(const View& source, std::byte* out) const = 0;
};

// Scratch is rounded to this, so that neighbours do not share lines and vector loads are aligned.
constexpr size_t kScratchAlignment = 256;

}  // namespace sluice::gpu::host
