#include "gpu/host/attention.h"

#include <cmath>

#include "gpu/host/attention_blocks.h"

namespace sluice::gpu::host {
namespace {

// A task takes some 256 queries of all query heads of one key head: enough that packing K and V for them
// costs a few percent, and enough tasks for one long document.
int64_t task_queries(const AttentionShape& shape) {
  return round_up<int64_t>(256, block_queries(shape));
}

struct Scratch {
  Panels keys;     // K^T: (D, keys)
  Panels values;   // V: (keys, D)
  float* widened;  // (block rows, D): q as fp32, where the kernel wants that
  float* scores;   // (block rows, score_stride): scores, then weights (fp32 or bf16)
  float* output;   // (block rows, D in whole panels)
  SoftmaxSum* sums;
  size_t bytes = 0;
};

Scratch cut(const AttentionForward& op, const PanelKernel& kernel, std::byte* begin) {
  ScratchCutter cutter(begin);
  const int64_t dim = op.shape.head_dim, rows = block_rows(op.shape);
  Scratch scratch{};
  scratch.keys = Panels::take(cutter, kernel.operand, dim, op.k.rows);
  scratch.values = Panels::take(cutter, kernel.operand, op.k.rows, dim);
  scratch.widened = cutter.take<float>(rows * dim);
  scratch.scores = cutter.take<float>(rows * score_stride(op.k.rows));
  scratch.output = cutter.take<float>(rows * round_up(dim, kPanelWidth));
  scratch.sums = cutter.take<SoftmaxSum>(rows);
  scratch.bytes = cutter.used();
  return scratch;
}

// Some queries of all heads of a group; row h * count + i of the scratch is query i of the group's head h.
struct Block {
  const AttentionForward& op;
  const PanelKernel& kernel;
  int64_t head_begin = 0;
  int64_t group = 0;
  int64_t row = 0;      // first query's row in q
  int64_t count = 0;    // queries
  int64_t offset = 0;   // keys before the first query's own
  int64_t visible = 0;  // keys that the last query sees
  int64_t stride = 0;   // of scores
};

// Weights, not yet divided by their sums.
void weigh(const Block& block, const Scratch& scratch) {
  const int64_t dim = block.op.shape.head_dim;
  std::vector<RowsPart> parts;
  for (int64_t h = 0; h < block.group; ++h) {
    const View rows =
        head(block.op.q, block.head_begin + h, dim).row_range(block.row, block.row + block.count);
    parts.push_back({left_rows(block.kernel, rows, scratch.widened + h * block.count * dim), block.count,
                     scratch.scores + h * block.count * block.stride});
  }
  multiply_panels(block.kernel,
                  {.parts = parts, .depth = dim, .cols = block.visible, .out_stride = block.stride},
                  scratch.keys);
  for (int64_t r = 0; r < block.group * block.count; ++r) {
    float* row = scratch.scores + r * block.stride;
    scratch.sums[r] = softmax_row({.scores = row,
                                   .weights = row,
                                   .dtype = block.kernel.operand,
                                   .visible = block.offset + r % block.count + 1,
                                   .padded = round_up(block.visible, kPanelWidth),
                                   .factor = block.op.shape.scale * kLog2E});
  }
}

void forward_block(const Block& block, const Scratch& scratch) {
  const int64_t dim = block.op.shape.head_dim, wide = round_up(dim, kPanelWidth);
  weigh(block, scratch);
  const RowsPart weights{{reinterpret_cast<const std::byte*>(scratch.scores), block.stride * 4, 4},
                         block.group * block.count,
                         scratch.output};
  multiply_panels(block.kernel,
                  {.parts = {&weights, 1},
                   .depth = block.visible,
                   .cols = dim,
                   .out_stride = wide,
                   .first_zero = block.offset + 1,
                   .period = block.count},
                  scratch.values);
  for (int64_t r = 0; r < block.group * block.count; ++r) {
    const int64_t query_head = block.head_begin + r / block.count, row = block.row + r % block.count;
    const SoftmaxSum& sum = scratch.sums[r];
    scale_row(scratch.output + r * wide, 1 / sum.sum, dim,
              head(block.op.o, query_head, dim).row_range(row, row + 1).data, block.op.o.dtype);
    if (!block.op.lse.empty())
      block.op.lse.row<float>(row)[query_head] = (sum.max + std::log2(sum.sum)) * kLn2;
  }
}

// One task: packs the keys that its queries see, then goes through the queries in blocks.
void forward_queries(const AttentionForward& op, const PanelKernel& kernel, const AttentionSegment& segment,
                     int64_t key_head, int64_t begin, std::byte* memory) {
  Scratch scratch = cut(op, kernel, memory);
  const int64_t end = std::min(segment.query_count, begin + task_queries(op.shape));
  const int64_t before = segment.key_count - segment.query_count;
  const auto pack = [&](const View& view, PackOrder order, Panels& panels) {
    const PackRows rows{head(view, key_head, op.shape.head_dim)
                            .row_range(segment.key_begin, segment.key_begin + before + end),
                        {}};
    pack_panels(kernel, {&rows, 1}, order, panels);
  };
  pack(op.k, PackOrder::depth_is_col, scratch.keys);
  pack(op.v, PackOrder::depth_is_row, scratch.values);
  const int64_t group = op.shape.head_count / op.shape.key_value_head_count;
  for (int64_t query = begin; query < end; query += block_queries(op.shape)) {
    Block block{op, kernel, key_head * group, group, segment.query_begin + query};
    block.count = std::min(block_queries(op.shape), end - query);
    block.offset = before + query;
    block.visible = block.offset + block.count;
    block.stride = score_stride(block.visible);
    const int64_t next = block.row + block.count;
    const int64_t next_end = std::min(segment.query_begin + end, next + block_queries(op.shape));
    const int64_t cols = group * op.shape.head_dim;
    prefetch_rows<0>(op.q.row_range(next, next_end).col_range(key_head * cols, (key_head + 1) * cols));
    prefetch_rows<1>(op.o.row_range(next, next_end).col_range(key_head * cols, (key_head + 1) * cols));
    forward_block(block, scratch);
  }
}

}  // namespace

size_t workspace_bytes(const AttentionForward& op, int thread_count, const AttentionOptions& options) {
  return cut(op, attention_kernel(op.q.dtype, options.kernel), nullptr).bytes *
         static_cast<size_t>(thread_count);
}

void run(const AttentionForward& op, Executor& executor, Workspace workspace,
         const AttentionOptions& options) {
  const PanelKernel& kernel = attention_kernel(op.q.dtype, options.kernel);
  const size_t worker_bytes = cut(op, kernel, nullptr).bytes;
  SLUICE_CHECK(workspace.size_bytes >= worker_bytes * static_cast<size_t>(executor.thread_count()),
               "workspace is smaller than workspace_bytes() says");
  struct Part {
    const AttentionSegment* segment;
    int64_t begin;
  };
  std::vector<Part> parts;
  std::vector<std::pair<int64_t, int64_t>> covered;
  for (const AttentionSegment& segment : *op.segments) {
    covered.emplace_back(segment.query_begin, segment.query_count);
    for (int64_t begin = 0; begin < segment.query_count; begin += task_queries(op.shape))
      parts.push_back({&segment, begin});
  }
  // Those that see the most keys first: the last tasks are short.
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.begin > b.begin; });
  zero_uncovered(op.o, covered);
  zero_uncovered(op.lse, covered);
  const int64_t key_heads = op.shape.key_value_head_count;
  executor.run(static_cast<int64_t>(parts.size()) * key_heads, [&](int64_t task, int worker) {
    const Part& part = parts[static_cast<size_t>(task / key_heads)];
    forward_queries(op, kernel, *part.segment, task % key_heads, part.begin,
                    workspace.data + static_cast<size_t>(worker) * worker_bytes);
  });
}

}  // namespace sluice::gpu::host
