#include <cstring>

#include "gpu/host/attention.h"
#include "gpu/host/attention_blocks.h"

// One task owns one key head of one segment: it goes through the query heads of the group and their query
// blocks in order and sums dK and dV in fp32, so no sum crosses threads.
//   P = exp(scale q k^T - lse)   dP = dO V^T   dS = P * (dP - rowsum(dO * O)) * scale
//   dQ = dS K   dK += dS^T Q   dV += P^T dO        (Dao et al. 2022, arXiv:2205.14135, algorithm 4)
namespace sluice::gpu::host {
namespace {

struct Scratch {
  Panels keys_turned;    // K^T: (D, keys)
  Panels values_turned;  // V^T: (D, keys)
  Panels keys;           // K: (keys, D)
  Panels queries;        // of a block: (kQueryBlock, D)
  Panels d_outputs;      // of a block: (kQueryBlock, D)
  float* widened;        // (kQueryBlock, D) fp32, where the kernel wants that
  float* scores;         // (kQueryBlock, score_stride) scores, then P
  float* d_scores;       // (kQueryBlock, score_stride) dP, then dS
  uint32_t* pairs;       // bf16 only: P, two rows a lane: (kQueryBlock / 2, score_stride)
  uint32_t* d_pairs;     // bf16 only: dS likewise
  float* dq;             // (kQueryBlock, D in whole panels)
  float* dk;             // (keys, D in whole panels)
  float* dv;             // (keys, D in whole panels)
  size_t bytes = 0;
};

Scratch cut(const AttentionBackward& op, const PanelKernel& kernel, std::byte* begin) {
  ScratchCutter cutter(begin);
  const int64_t dim = op.shape.head_dim, wide = round_up(dim, kPanelWidth), keys = op.k.rows;
  const int64_t block_scores = kQueryBlock * score_stride(keys);
  const int64_t pairs = kernel.operand == DType::bf16 ? block_scores / 2 : 0;
  Scratch scratch{};
  scratch.keys_turned = Panels::take(cutter, kernel.operand, dim, keys);
  scratch.values_turned = Panels::take(cutter, kernel.operand, dim, keys);
  scratch.keys = Panels::take(cutter, kernel.operand, keys, dim);
  scratch.queries = Panels::take(cutter, kernel.operand, kQueryBlock, dim);
  scratch.d_outputs = Panels::take(cutter, kernel.operand, kQueryBlock, dim);
  scratch.widened = cutter.take<float>(kQueryBlock * dim);
  scratch.scores = cutter.take<float>(block_scores);
  scratch.d_scores = cutter.take<float>(block_scores);
  scratch.pairs = cutter.take<uint32_t>(pairs);
  scratch.d_pairs = cutter.take<uint32_t>(pairs);
  scratch.dq = cutter.take<float>(kQueryBlock * wide);
  scratch.dk = cutter.take<float>(keys * wide);
  scratch.dv = cutter.take<float>(keys * wide);
  scratch.bytes = cutter.used();
  return scratch;
}

// One block of queries of one head.
struct Block {
  const AttentionBackward& op;
  const PanelKernel& kernel;
  int64_t query_head = 0;
  int64_t row = 0;      // first query's row in q
  int64_t query = 0;    // and its place in the segment
  int64_t count = 0;    // at most kQueryBlock
  int64_t visible = 0;  // keys that its last query sees
  int64_t stride = 0;   // of scores
  View rows(const View& view) const {
    return head(view, query_head, op.shape.head_dim).row_range(row, row + count);
  }
};

// P and dS from scores and dP, in the forms that the three products behind want.
void score_gradients(const Block& block, const Scratch& scratch) {
  const float scale = block.op.shape.scale;
  const ScoreScale scales{scale, scale * kLog2E, round_up(block.visible, kPanelWidth)};
  const View o = block.rows(block.op.o), d_o = block.rows(block.op.d_o);
  const auto row = [&](int64_t i) {
    ScoreRow result{scratch.scores + i * block.stride, scratch.d_scores + i * block.stride};
    if (i >= block.count) return result;  // the second of a pair: nothing visible
    result.visible = block.query + i + 1;
    result.log_sum = block.op.lse.row<float>(block.row + i)[block.query_head] * kLog2E;
    result.delta = dot_row(d_o.row_range(i, i + 1).data, o.row_range(i, i + 1).data, o.cols, o.dtype);
    return result;
  };
  if (block.kernel.operand == DType::f32) {
    for (int64_t i = 0; i < block.count; ++i) score_gradient_row(row(i), scales);
    return;
  }
  for (int64_t i = 0; i < block.count; i += 2) {
    const ScoreRow first = row(i), second = row(i + 1);
    // dS in bf16 takes the place of dP, row by row.
    score_gradient_pair(
        first, second, scales,
        {scratch.pairs + i / 2 * block.stride,
         scratch.d_pairs + i / 2 * block.stride,
         {reinterpret_cast<uint16_t*>(first.d_weights), reinterpret_cast<uint16_t*>(second.d_weights)}});
  }
}

void scores_of_block(const Block& block, const Scratch& scratch) {
  const auto multiply = [&](const View& left, const Panels& right, float* out) {
    multiply_panels(block.kernel,
                    {.left = left_rows(block.kernel, block.rows(left), scratch.widened),
                     .rows = block.count,
                     .depth = block.op.shape.head_dim,
                     .cols = block.visible,
                     .out = out,
                     .out_stride = block.stride},
                    right);
  };
  multiply(block.op.q, scratch.keys_turned, scratch.scores);
  multiply(block.op.d_o, scratch.values_turned, scratch.d_scores);
}

void backward_block(const Block& block, Scratch& scratch) {
  const int64_t dim = block.op.shape.head_dim, wide = round_up(dim, kPanelWidth);
  scores_of_block(block, scratch);
  score_gradients(block, scratch);
  multiply_panels(block.kernel,
                  {.left = {reinterpret_cast<const std::byte*>(scratch.d_scores), block.stride * 4, 4},
                   .rows = block.count,
                   .depth = block.visible,
                   .cols = dim,
                   .out = scratch.dq,
                   .out_stride = wide},
                  scratch.keys);
  const View dq = block.rows(block.op.dq);
  for (int64_t i = 0; i < block.count; ++i)
    scale_row(scratch.dq + i * wide, 1, dim, dq.row_range(i, i + 1).data, dq.dtype);

  // Transposed left operands: a lane of 32 bits of row d of the scores is depth d of key `row`.
  const bool pairs = block.kernel.operand == DType::bf16;
  const auto accumulate = [&](const void* left, const View& right, Panels& panels, float* out) {
    pack_panels(block.kernel, block.rows(right), PackOrder::depth_is_row, panels);
    multiply_panels(block.kernel,
                    {.left = {static_cast<const std::byte*>(left), 4, block.stride * 4},
                     .rows = block.visible,
                     .depth = block.count,
                     .cols = dim,
                     .add = true,
                     .out = out,
                     .out_stride = wide},
                    panels);
  };
  accumulate(pairs ? static_cast<const void*>(scratch.pairs) : scratch.scores, block.op.d_o,
             scratch.d_outputs, scratch.dv);
  accumulate(pairs ? static_cast<const void*>(scratch.d_pairs) : scratch.d_scores, block.op.q,
             scratch.queries, scratch.dk);
}

void backward_head(const AttentionBackward& op, const PanelKernel& kernel, const AttentionSegment& segment,
                   int64_t key_head, std::byte* memory) {
  Scratch scratch = cut(op, kernel, memory);
  const int64_t dim = op.shape.head_dim, wide = round_up(dim, kPanelWidth), keys = segment.key_count;
  const auto keys_of = [&](const View& view) {
    return head(view, key_head, dim).row_range(segment.key_begin, segment.key_begin + keys);
  };
  pack_panels(kernel, keys_of(op.k), PackOrder::depth_is_col, scratch.keys_turned);
  pack_panels(kernel, keys_of(op.v), PackOrder::depth_is_col, scratch.values_turned);
  pack_panels(kernel, keys_of(op.k), PackOrder::depth_is_row, scratch.keys);
  std::memset(scratch.dk, 0, static_cast<size_t>(keys * wide) * sizeof(float));
  std::memset(scratch.dv, 0, static_cast<size_t>(keys * wide) * sizeof(float));
  const int64_t group = op.shape.head_count / op.shape.key_value_head_count;
  for (int64_t query_head = key_head * group; query_head < (key_head + 1) * group; ++query_head) {
    for (int64_t query = 0; query < segment.query_count; query += kQueryBlock) {
      Block block{op, kernel, query_head, segment.query_begin + query, query};
      block.count = std::min(kQueryBlock, segment.query_count - query);
      block.visible = query + block.count;
      block.stride = score_stride(block.visible);
      backward_block(block, scratch);
    }
  }
  const View dk = keys_of(op.dk), dv = keys_of(op.dv);
  for (int64_t i = 0; i < keys; ++i) {
    scale_row(scratch.dk + i * wide, 1, dim, dk.row_range(i, i + 1).data, dk.dtype);
    scale_row(scratch.dv + i * wide, 1, dim, dv.row_range(i, i + 1).data, dv.dtype);
  }
}

}  // namespace

size_t workspace_bytes(const AttentionBackward& op, int thread_count, const AttentionOptions& options) {
  return cut(op, attention_kernel(op.q.dtype, options.kernel), nullptr).bytes *
         static_cast<size_t>(thread_count);
}

void run(const AttentionBackward& op, Executor& executor, Workspace workspace,
         const AttentionOptions& options) {
  const PanelKernel& kernel = attention_kernel(op.q.dtype, options.kernel);
  const size_t worker_bytes = cut(op, kernel, nullptr).bytes;
  SLUICE_CHECK(workspace.size_bytes >= worker_bytes * static_cast<size_t>(executor.thread_count()),
               "workspace is smaller than workspace_bytes() says");
  std::vector<const AttentionSegment*> segments;
  std::vector<std::pair<int64_t, int64_t>> queries, keys;
  for (const AttentionSegment& segment : *op.segments) {
    SLUICE_CHECK(segment.query_count == segment.key_count);
    queries.emplace_back(segment.query_begin, segment.query_count);
    keys.emplace_back(segment.key_begin, segment.key_count);
    if (segment.query_count > 0) segments.push_back(&segment);
  }
  std::stable_sort(
      segments.begin(), segments.end(),
      [](const AttentionSegment* a, const AttentionSegment* b) { return a->key_count > b->key_count; });
  zero_uncovered(op.dq, queries);
  zero_uncovered(op.dk, keys);
  zero_uncovered(op.dv, keys);
  const int64_t key_heads = op.shape.key_value_head_count;
  executor.run(static_cast<int64_t>(segments.size()) * key_heads, [&](int64_t task, int worker) {
    backward_head(op, kernel, *segments[static_cast<size_t>(task / key_heads)], task % key_heads,
                  workspace.data + static_cast<size_t>(worker) * worker_bytes);
  });
}

}  // namespace sluice::gpu::host
