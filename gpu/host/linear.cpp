#include "gpu/host/linear.h"

#include <algorithm>

#include "engine/base/math.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/panel_scalar.h"

namespace sluice::gpu::host {
namespace {

const MatmulKernel& kernel_for(DType dtype, const LinearOptions& options) {
  return options.kernel != nullptr ? *options.kernel : kernel_table().matmul(dtype);
}

size_t aligned(size_t bytes) {
  return round_up(bytes, kScratchAlignment);
}

void check_workspace(const Workspace& workspace, size_t needed) {
  SLUICE_CHECK(workspace.size_bytes >= needed, "workspace is smaller than workspace_bytes() says");
}

// b of one product: the weight seen in the direction of its layout.
struct RightShape {
  int64_t depth = 0;
  int64_t cols = 0;
};
RightShape right_shape(int64_t rows, int64_t cols, WeightLayout layout) {
  return layout == WeightLayout::forward ? RightShape{cols, rows} : RightShape{rows, cols};
}
RightShape right_shape(const PackedWeight& weight) {
  return right_shape(weight.rows, weight.cols, weight.layout);
}

int64_t block_count(const MatmulKernel& kernel, int64_t cols) {
  return divide_up(cols, kernel.block_cols());
}

// fp32 rows of bf16 ones: for kernels that multiply fp32 only. Returns the rows as left operand.
LeftOperand upcast(const View& rows, float* out) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    const BFloat16* from = rows.row<BFloat16>(r);
    for (int64_t c = 0; c < rows.cols; ++c) out[r * rows.cols + c] = to_float(from[c]);
  }
  return {reinterpret_cast<const std::byte*>(out), rows.cols * 4, 4};
}

LeftOperand plain_left(const View& rows) {
  return {rows.data, rows.stride * static_cast<int64_t>(size_bytes(rows.dtype)), 4};
}

// Rows of a task: 64 to 256, and where the depth allows it no more than 384 KiB, so that they stay in L2
// beside a block of b while the whole of b goes by.
int64_t chosen_row_chunk(const MatmulKernel& kernel, int64_t depth, const LinearOptions& options) {
  if (options.row_chunk > 0) return options.row_chunk;
  const int64_t row_bytes = std::max<int64_t>(1, depth) * static_cast<int64_t>(size_bytes(kernel.operand()));
  int64_t rows = 256;
  while (rows > 64 && rows * row_bytes > 384 * 1024) rows /= 2;
  return rows;
}

struct RowsScratch {
  size_t upcast_bytes = 0;
  size_t product_bytes = 0;
  size_t total() const { return upcast_bytes + product_bytes; }
};
RowsScratch rows_scratch(const MatmulKernel& kernel, DType dtype, int64_t rows, int64_t depth,
                         int64_t row_chunk) {
  const int64_t chunk = std::min(rows, row_chunk);
  const bool wants_upcast = dtype == DType::bf16 && kernel.operand() == DType::f32;
  return {.upcast_bytes = wants_upcast ? aligned(static_cast<size_t>(chunk * depth) * 4) : 0,
          .product_bytes = aligned(kernel.product_scratch_bytes(depth, chunk))};
}

size_t rows_workspace_bytes(const View& left, const PackedWeight& weight, int thread_count,
                            const LinearOptions& options) {
  const MatmulKernel& kernel = kernel_for(left.dtype, options);
  const int64_t depth = right_shape(weight).depth;
  return rows_scratch(kernel, left.dtype, left.rows, depth, chosen_row_chunk(kernel, depth, options))
             .total() *
         static_cast<size_t>(thread_count);
}

// out = left * b (+ addend) for all rows, in tasks of (row chunk, blocks of b). Column parts come outermost
// and have 4 MiB at most, so that tasks that run together share them in the last-level cache.
void multiply_rows(const View& left, const PackedWeight& weight, const View& addend, const View& out,
                   Executor& executor, Workspace workspace, const LinearOptions& options) {
  constexpr size_t kPartBytes = size_t{4} << 20;
  const MatmulKernel& kernel = kernel_for(left.dtype, options);
  const RightShape right = right_shape(weight);
  if (left.rows == 0 || right.cols == 0) return;
  const int64_t blocks = block_count(kernel, right.cols);
  const size_t block_bytes = kernel.block_bytes(right.depth);
  SLUICE_CHECK(weight.size_bytes >= static_cast<size_t>(blocks) * block_bytes);
  const int64_t row_chunk = chosen_row_chunk(kernel, right.depth, options);
  const RowsScratch scratch = rows_scratch(kernel, left.dtype, left.rows, right.depth, row_chunk);
  check_workspace(workspace, scratch.total() * static_cast<size_t>(executor.thread_count()));
  const int64_t chunks = divide_up(left.rows, row_chunk);
  const int64_t wanted_parts = std::max(divide_up<int64_t>(4 * executor.thread_count(), chunks),
                                        static_cast<int64_t>(weight.size_bytes / kPartBytes));
  const int64_t part_blocks = divide_up(blocks, std::clamp<int64_t>(wanted_parts, 1, blocks));
  const int64_t parts = divide_up(blocks, part_blocks);

  executor.run(chunks * parts, [&](int64_t task, int worker) {
    const int64_t row_begin = task % chunks * row_chunk;
    const int64_t row_end = std::min(left.rows, row_begin + row_chunk);
    std::byte* own = workspace.data + static_cast<size_t>(worker) * scratch.total();
    const View rows = left.row_range(row_begin, row_end);
    BlockProduct product{
        .left = scratch.upcast_bytes > 0 ? upcast(rows, reinterpret_cast<float*>(own)) : plain_left(rows),
        .row_count = rows.rows,
        .depth = right.depth,
        .block = nullptr,
        .addend = {},
        .out = {},
        .scratch = own + scratch.upcast_bytes};
    const int64_t block_end = std::min(blocks, (task / chunks + 1) * part_blocks);
    for (int64_t block = task / chunks * part_blocks; block < block_end; ++block) {
      const int64_t col_begin = block * kernel.block_cols();
      const int64_t col_end = std::min(right.cols, col_begin + kernel.block_cols());
      product.block = weight.data + static_cast<size_t>(block) * block_bytes;
      product.out = out.row_range(row_begin, row_end).col_range(col_begin, col_end);
      if (!addend.empty())
        product.addend = addend.row_range(row_begin, row_end).col_range(col_begin, col_end);
      kernel.multiply(product);
    }
  });
}

}  // namespace

size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout,
                    const LinearOptions& options) {
  const MatmulKernel& kernel = kernel_for(dtype, options);
  const RightShape right = right_shape(rows, cols, layout);
  return static_cast<size_t>(block_count(kernel, right.cols)) * kernel.block_bytes(right.depth);
}

size_t workspace_bytes(const LinearPack& op, int thread_count, const LinearOptions& options) {
  const MatmulKernel& kernel = kernel_for(op.packed.dtype, options);
  return aligned(kernel.pack_scratch_bytes(right_shape(op.packed).depth)) * static_cast<size_t>(thread_count);
}

void run(const LinearPack& op, Executor& executor, Workspace workspace, const LinearOptions& options) {
  const MatmulKernel& kernel = kernel_for(op.packed.dtype, options);
  const RightShape right = right_shape(op.packed);
  std::vector<PackRows> sources;
  for (const LinearPack::Source& source : op.sources)
    if (!source.high.empty()) sources.push_back({source.high, source.low});
  if (sources.empty()) return;
  const size_t scratch = aligned(kernel.pack_scratch_bytes(right.depth));
  check_workspace(workspace, scratch * static_cast<size_t>(executor.thread_count()));
  const size_t block_bytes = kernel.block_bytes(right.depth);
  // Where fp32 stands in for bf16, values are rounded as bf16 first: numbers differ from real bf16 only by
  // the order of the sum.
  const bool round_to_bf16 = op.packed.dtype == DType::bf16 && kernel.operand() == DType::f32;
  executor.run(block_count(kernel, right.cols), [&](int64_t block, int worker) {
    const int64_t col_begin = block * kernel.block_cols();
    kernel.pack({.sources = sources,
                 .order = op.packed.layout == WeightLayout::forward ? PackOrder::depth_is_col
                                                                    : PackOrder::depth_is_row,
                 .round_to_bf16 = round_to_bf16,
                 .depth = right.depth,
                 .col_begin = col_begin,
                 .col_count = std::min(right.cols - col_begin, kernel.block_cols()),
                 .block = op.packed.data + static_cast<size_t>(block) * block_bytes,
                 .scratch = workspace.data + static_cast<size_t>(worker) * scratch});
  });
}

size_t workspace_bytes(const LinearForward& op, int thread_count, const LinearOptions& options) {
  return rows_workspace_bytes(op.x, op.weight, thread_count, options);
}

void run(const LinearForward& op, Executor& executor, Workspace workspace, const LinearOptions& options) {
  SLUICE_CHECK(op.weight.layout == WeightLayout::forward && op.weight.dtype == op.x.dtype);
  multiply_rows(op.x, op.weight, op.addend, op.y, executor, workspace, options);
}

size_t workspace_bytes(const LinearBackwardInput& op, int thread_count, const LinearOptions& options) {
  return rows_workspace_bytes(op.dy, op.weight, thread_count, options);
}

void run(const LinearBackwardInput& op, Executor& executor, Workspace workspace,
         const LinearOptions& options) {
  SLUICE_CHECK(op.weight.layout == WeightLayout::backward && op.weight.dtype == op.dy.dtype);
  multiply_rows(op.dy, op.weight, op.accumulate ? op.dx : View(), op.dx, executor, workspace, options);
}

}  // namespace sluice::gpu::host
