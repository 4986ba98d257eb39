#include <algorithm>

#include "engine/base/math.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/linear.h"

// dw = dy^T x. Tokens are taken in blocks of 1024, in order: x of a block is packed once (all columns, by all
// threads), then each task owns 96 rows of dw and some of its columns, packs its columns of dy and multiplies
// over all tokens of the block. So no sum crosses threads. Rates of the block sizes: shared facts, host step.
namespace sluice::gpu::host {
namespace {

constexpr int64_t kTokenBlock = 1024;

size_t aligned(size_t bytes) {
  return round_up(bytes, kScratchAlignment);
}

// Where things lie in the workspace: packed x, then scratch of each worker.
struct Layout {
  const MatmulKernel* kernel = nullptr;
  int64_t tokens = 0;  // of the largest block
  int64_t blocks = 0;  // of x's columns
  size_t x_bytes = 0;
  size_t left_bytes = 0;
  size_t product_bytes = 0;
  size_t pack_bytes = 0;
  size_t worker_bytes() const { return std::max(left_bytes + product_bytes, pack_bytes); }
  size_t total(int thread_count) const {
    return x_bytes + worker_bytes() * static_cast<size_t>(thread_count);
  }
};

Layout layout(const LinearBackwardWeight& op, const LinearOptions& options) {
  Layout result;
  result.kernel = options.kernel != nullptr ? options.kernel : &kernel_table().matmul(op.x.dtype);
  result.tokens = std::min(op.x.rows, kTokenBlock);
  result.blocks = divide_up(op.x.cols, result.kernel->block_cols());
  result.x_bytes = aligned(static_cast<size_t>(result.blocks) * result.kernel->block_bytes(result.tokens));
  result.left_bytes = aligned(result.kernel->left_bytes(result.tokens));
  result.product_bytes =
      aligned(result.kernel->product_scratch_bytes(result.tokens, MatmulKernel::kLeftRows));
  result.pack_bytes = aligned(result.kernel->pack_scratch_bytes(result.tokens));
  return result;
}

void pack_tokens(const View& x, const Layout& plan, Executor& executor, Workspace workspace) {
  const PackRows rows{x, {}};
  const size_t block_bytes = plan.kernel->block_bytes(x.rows);
  executor.run(plan.blocks, [&](int64_t block, int worker) {
    const int64_t col_begin = block * plan.kernel->block_cols();
    plan.kernel->pack(
        {.sources = {&rows, 1},
         .order = PackOrder::depth_is_row,
         .depth = x.rows,
         .col_begin = col_begin,
         .col_count = std::min(x.cols - col_begin, plan.kernel->block_cols()),
         .block = workspace.data + static_cast<size_t>(block) * block_bytes,
         .scratch = workspace.data + plan.x_bytes + static_cast<size_t>(worker) * plan.worker_bytes()});
  });
}

void multiply_tokens(const View& dy, const View& dw, bool add, const Layout& plan, Executor& executor,
                     Workspace workspace) {
  const size_t block_bytes = plan.kernel->block_bytes(dy.rows);
  const int64_t row_blocks = divide_up(dw.rows, MatmulKernel::kLeftRows);
  const int64_t wanted_parts =
      std::clamp<int64_t>(divide_up<int64_t>(4 * executor.thread_count(), row_blocks), 1, plan.blocks);
  const int64_t part_blocks = divide_up(plan.blocks, wanted_parts);
  const int64_t parts = divide_up(plan.blocks, part_blocks);
  executor.run(row_blocks * parts, [&](int64_t task, int worker) {
    std::byte* own = workspace.data + plan.x_bytes + static_cast<size_t>(worker) * plan.worker_bytes();
    const int64_t row_begin = task / parts * MatmulKernel::kLeftRows;
    const int64_t row_end = std::min(dw.rows, row_begin + MatmulKernel::kLeftRows);
    BlockProduct product{.left = plan.kernel->pack_left(dy.col_range(row_begin, row_end), own),
                         .row_count = row_end - row_begin,
                         .depth = dy.rows,
                         .block = nullptr,
                         .addend = {},
                         .out = {},
                         .scratch = own + plan.left_bytes};
    const int64_t block_end = std::min(plan.blocks, (task % parts + 1) * part_blocks);
    for (int64_t block = task % parts * part_blocks; block < block_end; ++block) {
      const int64_t col_begin = block * plan.kernel->block_cols();
      const int64_t col_end = std::min(dw.cols, col_begin + plan.kernel->block_cols());
      product.block = workspace.data + static_cast<size_t>(block) * block_bytes;
      product.out = dw.row_range(row_begin, row_end).col_range(col_begin, col_end);
      if (add) product.addend = product.out;
      plan.kernel->multiply(product);
    }
  });
}

}  // namespace

size_t workspace_bytes(const LinearBackwardWeight& op, int thread_count, const LinearOptions& options) {
  return layout(op, options).total(thread_count);
}

void run(const LinearBackwardWeight& op, Executor& executor, Workspace workspace,
         const LinearOptions& options) {
  if (op.dw.rows == 0 || op.dw.cols == 0) return;
  const Layout plan = layout(op, options);
  SLUICE_CHECK(workspace.size_bytes >= plan.total(executor.thread_count()),
               "workspace is smaller than workspace_bytes() says");
  int64_t begin = 0;
  do {  // once where there are no tokens: the gradient is then 0
    const int64_t end = std::min(op.x.rows, begin + kTokenBlock);
    pack_tokens(op.x.row_range(begin, end), plan, executor, workspace);
    multiply_tokens(op.dy.row_range(begin, end), op.dw, op.accumulate || begin > 0, plan, executor,
                    workspace);
    begin += kTokenBlock;
  } while (begin < op.x.rows);
}

}  // namespace sluice::gpu::host
