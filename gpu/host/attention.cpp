#include "gpu/host/attention.h"

#include <cmath>

#include "gpu/host/attention_blocks.h"

namespace sluice::gpu::host {
namespace {

// A task takes 8 query blocks of all query heads of one key head: enough that packing K and V for them costs
// a few percent, and enough tasks for one long document.
constexpr int64_t kTaskQueries = 8 * kQueryBlock;

struct Scratch {
  Panels keys;     // K^T: (D, keys)
  Panels values;   // V: (keys, D)
  float* widened;  // (kQueryBlock, D): q as fp32, where the kernel wants that
  float* scores;   // (kQueryBlock, score_stride)
  float* output;   // (kQueryBlock, D in whole panels)
  size_t bytes = 0;
};

Scratch cut(const AttentionForward& op, const PanelKernel& kernel, std::byte* begin) {
  ScratchCutter cutter(begin);
  const int64_t dim = op.shape.head_dim;
  Scratch scratch{};
  scratch.keys = Panels::take(cutter, kernel.operand, dim, op.k.rows);
  scratch.values = Panels::take(cutter, kernel.operand, op.k.rows, dim);
  scratch.widened = cutter.take<float>(kQueryBlock * dim);
  scratch.scores = cutter.take<float>(kQueryBlock * score_stride(op.k.rows));
  scratch.output = cutter.take<float>(kQueryBlock * round_up(dim, kPanelWidth));
  scratch.bytes = cutter.used();
  return scratch;
}

// Queries [begin, begin + count) of a segment, all of one key head's group.
struct Job {
  const AttentionForward& op;
  const PanelKernel& kernel;
  const AttentionSegment& segment;
  const Scratch& scratch;
  int64_t query_head = 0;
};

// Weights of one block of queries, not yet divided by their sum: fp32 or bf16 over the scores.
void weigh(const Job& job, int64_t query, int64_t count, int64_t stride, SoftmaxSum* sums) {
  const int64_t offset = job.segment.key_count - job.segment.query_count + query;
  const View rows = head(job.op.q, job.query_head, job.op.shape.head_dim)
                        .row_range(job.segment.query_begin + query, job.segment.query_begin + query + count);
  const int64_t visible = offset + count;
  multiply_panels(job.kernel,
                  {.left = left_rows(job.kernel, rows, job.scratch.widened),
                   .rows = count,
                   .depth = job.op.shape.head_dim,
                   .cols = visible,
                   .out = job.scratch.scores,
                   .out_stride = stride},
                  job.scratch.keys);
  for (int64_t i = 0; i < count; ++i) {
    float* row = job.scratch.scores + i * stride;
    sums[i] = softmax_row({.scores = row,
                           .weights = row,
                           .dtype = job.kernel.operand,
                           .visible = offset + i + 1,
                           .padded = round_up(visible, kPanelWidth),
                           .factor = job.op.shape.scale * kLog2E});
  }
}

void forward_block(const Job& job, int64_t query, int64_t count) {
  const int64_t dim = job.op.shape.head_dim;
  const int64_t visible = job.segment.key_count - job.segment.query_count + query + count;
  const int64_t stride = score_stride(visible);
  const int64_t output_stride = round_up(dim, kPanelWidth);
  SoftmaxSum sums[kQueryBlock];
  weigh(job, query, count, stride, sums);
  multiply_panels(job.kernel,
                  {.left = {reinterpret_cast<const std::byte*>(job.scratch.scores), stride * 4, 4},
                   .rows = count,
                   .depth = visible,
                   .cols = dim,
                   .out = job.scratch.output,
                   .out_stride = output_stride},
                  job.scratch.values);
  const View out = head(job.op.o, job.query_head, dim);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = job.segment.query_begin + query + i;
    scale_row(job.scratch.output + i * output_stride, 1 / sums[i].sum, dim, out.row_range(row, row + 1).data,
              out.dtype);
    if (!job.op.lse.empty())
      job.op.lse.row<float>(row)[job.query_head] = (sums[i].max + std::log2(sums[i].sum)) * kLn2;
  }
}

// One task: packs the keys that its queries see, then goes through the group's heads.
void forward_queries(const AttentionForward& op, const PanelKernel& kernel, const AttentionSegment& segment,
                     int64_t key_head, int64_t begin, std::byte* memory) {
  Scratch scratch = cut(op, kernel, memory);
  const int64_t end = std::min(segment.query_count, begin + kTaskQueries);
  const int64_t visible = segment.key_count - segment.query_count + end;
  const auto keys_of = [&](const View& view) {
    return head(view, key_head, op.shape.head_dim).row_range(segment.key_begin, segment.key_begin + visible);
  };
  pack_panels(kernel, keys_of(op.k), PackOrder::depth_is_col, scratch.keys);
  pack_panels(kernel, keys_of(op.v), PackOrder::depth_is_row, scratch.values);
  const int64_t group = op.shape.head_count / op.shape.key_value_head_count;
  for (int64_t query_head = key_head * group; query_head < (key_head + 1) * group; ++query_head)
    for (int64_t query = begin; query < end; query += kQueryBlock)
      forward_block({op, kernel, segment, scratch, query_head}, query, std::min(kQueryBlock, end - query));
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
    for (int64_t begin = 0; begin < segment.query_count; begin += kTaskQueries)
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
