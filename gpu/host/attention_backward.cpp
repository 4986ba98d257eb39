#include <cstring>

#include "gpu/host/attention.h"
#include "gpu/host/attention_blocks.h"

// One task owns one key head of one segment: it goes through the queries in blocks, each of all query heads
// of the group, and sums dK and dV in fp32 over rows (head, query) in order, so no sum crosses threads.
//   P = exp(scale q k^T - lse)   dP = dO V^T   dS = P * (dP - rowsum(dO * O)) * scale
//   dQ = dS K   dK += dS^T Q   dV += P^T dO        (Dao et al. 2022, arXiv:2205.14135, algorithm 4)
namespace sluice::gpu::host {
namespace {

struct Scratch {
  Panels keys_turned;    // K^T: (D, keys)
  Panels values_turned;  // V^T: (D, keys)
  Panels keys;           // K: (keys, D)
  Panels queries;        // of a block: (block rows, D)
  Panels d_outputs;      // of a block: (block rows, D)
  float* widened;        // (block rows, D) fp32, where the kernel wants that
  float* scores;         // (block rows, score_stride) scores, then P
  float* d_scores;       // (block rows, score_stride) dP, then dS
  uint32_t* pairs;       // bf16 only: P, two rows a lane: (block rows / 2, score_stride)
  uint32_t* d_pairs;     // bf16 only: dS likewise
  float* dq;             // (block rows, D in whole panels)
  float* dk;             // (keys, D in whole panels)
  float* dv;             // (keys, D in whole panels)
  size_t bytes = 0;
};

Scratch cut(const AttentionBackward& op, const PanelKernel& kernel, std::byte* begin) {
  ScratchCutter cutter(begin);
  const int64_t dim = op.shape.head_dim, wide = round_up(dim, kPanelWidth), keys = op.k.rows;
  const int64_t rows = block_rows(op.shape), block_scores = rows * score_stride(keys);
  const int64_t pairs = kernel.operand == DType::bf16 ? block_scores / 2 : 0;
  Scratch scratch{};
  scratch.keys_turned = Panels::take(cutter, kernel.operand, dim, keys);
  scratch.values_turned = Panels::take(cutter, kernel.operand, dim, keys);
  scratch.keys = Panels::take(cutter, kernel.operand, keys, dim);
  scratch.queries = Panels::take(cutter, kernel.operand, rows, dim);
  scratch.d_outputs = Panels::take(cutter, kernel.operand, rows, dim);
  scratch.widened = cutter.take<float>(rows * dim);
  scratch.scores = cutter.take<float>(block_scores);
  scratch.d_scores = cutter.take<float>(block_scores);
  scratch.pairs = cutter.take<uint32_t>(pairs);
  scratch.d_pairs = cutter.take<uint32_t>(pairs);
  scratch.dq = cutter.take<float>(rows * wide);
  scratch.dk = cutter.take<float>(keys * wide);
  scratch.dv = cutter.take<float>(keys * wide);
  scratch.bytes = cutter.used();
  return scratch;
}

// Some queries of all heads of a group; row h * count + i of the scratch is query i of the group's head h.
struct Block {
  const AttentionBackward& op;
  const PanelKernel& kernel;
  int64_t head_begin = 0;
  int64_t group = 0;
  int64_t row = 0;      // first query's row in q
  int64_t query = 0;    // and its place in the segment
  int64_t count = 0;    // queries
  int64_t visible = 0;  // keys that its last query sees
  int64_t stride = 0;   // of scores
  int64_t rows() const { return group * count; }
  // The queries of the group's head h, one of them.
  View of_head(const View& view, int64_t h) const {
    return head(view, head_begin + h, op.shape.head_dim).row_range(row, row + count);
  }
  View of_row(const View& view, int64_t r) const {
    return of_head(view, r / count).row_range(r % count, r % count + 1);
  }
};

// P and dS from scores and dP, in the forms that the three products behind want.
void score_gradients(const Block& block, const Scratch& scratch) {
  const float scale = block.op.shape.scale;
  const int64_t dim = block.op.shape.head_dim;
  const ScoreScale scales{scale, scale * kLog2E, round_up(block.visible, kPanelWidth)};
  const auto row = [&](int64_t r) {
    ScoreRow result{scratch.scores + r * block.stride, scratch.d_scores + r * block.stride};
    if (r >= block.rows()) return result;  // the second of a pair: nothing visible
    result.visible = block.query + r % block.count + 1;
    const int64_t query_head = block.head_begin + r / block.count;
    result.log_sum = block.op.lse.row<float>(block.row + r % block.count)[query_head] * kLog2E;
    result.delta =
        dot_row(block.of_row(block.op.d_o, r).data, block.of_row(block.op.o, r).data, dim, block.op.o.dtype);
    return result;
  };
  if (block.kernel.operand == DType::f32) {
    for (int64_t r = 0; r < block.rows(); ++r) score_gradient_row(row(r), scales);
    return;
  }
  for (int64_t r = 0; r < block.rows(); r += 2) {
    const ScoreRow first = row(r), second = row(r + 1);
    // dS in bf16 takes the place of dP, row by row.
    score_gradient_pair(
        first, second, scales,
        {scratch.pairs + r / 2 * block.stride,
         scratch.d_pairs + r / 2 * block.stride,
         {reinterpret_cast<uint16_t*>(first.d_weights), reinterpret_cast<uint16_t*>(second.d_weights)}});
  }
}

void scores_of_block(const Block& block, const Scratch& scratch) {
  const int64_t dim = block.op.shape.head_dim;
  const auto multiply = [&](const View& left, const Panels& right, float* out) {
    std::vector<RowsPart> parts;
    for (int64_t h = 0; h < block.group; ++h)
      parts.push_back(
          {left_rows(block.kernel, block.of_head(left, h), scratch.widened + h * block.count * dim),
           block.count, out + h * block.count * block.stride});
    multiply_panels(block.kernel,
                    {.parts = parts, .depth = dim, .cols = block.visible, .out_stride = block.stride}, right);
  };
  multiply(block.op.q, scratch.keys_turned, scratch.scores);
  multiply(block.op.d_o, scratch.values_turned, scratch.d_scores);
}

void query_gradients(const Block& block, const Scratch& scratch) {
  const int64_t dim = block.op.shape.head_dim, wide = round_up(dim, kPanelWidth);
  const RowsPart rows{
      {reinterpret_cast<const std::byte*>(scratch.d_scores), block.stride * 4, 4}, block.rows(), scratch.dq};
  multiply_panels(block.kernel,
                  {.parts = {&rows, 1},
                   .depth = block.visible,
                   .cols = dim,
                   .out_stride = wide,
                   .first_zero = block.query + 1,
                   .period = block.count},
                  scratch.keys);
  for (int64_t r = 0; r < block.rows(); ++r)
    scale_row(scratch.dq + r * wide, 1, dim, block.of_row(block.op.dq, r).data, block.op.dq.dtype);
}

// out (keys, D) += scores^T right. The left operand is read across: a lane of 32 bits of row d of the scores
// is depth d of its key.
void add_key_gradients(const Block& block, const void* scores, const View& right, Panels& panels,
                       float* out) {
  const int64_t dim = block.op.shape.head_dim;
  std::vector<PackRows> sources;
  for (int64_t h = 0; h < block.group; ++h) sources.push_back({block.of_head(right, h), {}});
  pack_panels(block.kernel, sources, PackOrder::depth_is_row, panels);
  const RowsPart keys{{static_cast<const std::byte*>(scores), 4, block.stride * 4}, block.visible, out};
  multiply_rows(block.kernel,
                {.parts = {&keys, 1},
                 .depth = block.rows(),
                 .cols = dim,
                 .add = true,
                 .out_stride = round_up(dim, kPanelWidth)},
                panels);
}

void backward_block(const Block& block, Scratch& scratch) {
  scores_of_block(block, scratch);
  score_gradients(block, scratch);
  query_gradients(block, scratch);
  const bool pairs = block.kernel.operand == DType::bf16;
  add_key_gradients(block, pairs ? static_cast<const void*>(scratch.pairs) : scratch.scores, block.op.d_o,
                    scratch.d_outputs, scratch.dv);
  add_key_gradients(block, pairs ? static_cast<const void*>(scratch.d_pairs) : scratch.d_scores, block.op.q,
                    scratch.queries, scratch.dk);
}

// Of all heads of the group, which lie side by side.
void prefetch_block(const AttentionBackward& op, int64_t key_head, int64_t begin, int64_t end) {
  const int64_t cols = op.shape.head_count / op.shape.key_value_head_count * op.shape.head_dim;
  const auto rows = [&](const View& view) {
    return view.row_range(begin, end).col_range(key_head * cols, (key_head + 1) * cols);
  };
  for (const View* view : {&op.q, &op.o, &op.d_o}) prefetch_rows<0>(rows(*view));
  prefetch_rows<1>(rows(op.dq));
}

void backward_head(const AttentionBackward& op, const PanelKernel& kernel, const AttentionSegment& segment,
                   int64_t key_head, std::byte* memory) {
  Scratch scratch = cut(op, kernel, memory);
  const int64_t dim = op.shape.head_dim, wide = round_up(dim, kPanelWidth), keys = segment.key_count;
  const auto keys_of = [&](const View& view) {
    return head(view, key_head, dim).row_range(segment.key_begin, segment.key_begin + keys);
  };
  const PackRows k{keys_of(op.k), {}}, v{keys_of(op.v), {}};
  pack_panels(kernel, {&k, 1}, PackOrder::depth_is_col, scratch.keys_turned);
  pack_panels(kernel, {&v, 1}, PackOrder::depth_is_col, scratch.values_turned);
  pack_panels(kernel, {&k, 1}, PackOrder::depth_is_row, scratch.keys);
  std::memset(scratch.dk, 0, static_cast<size_t>(keys * wide) * sizeof(float));
  std::memset(scratch.dv, 0, static_cast<size_t>(keys * wide) * sizeof(float));
  const int64_t group = op.shape.head_count / op.shape.key_value_head_count;
  for (int64_t query = 0; query < segment.query_count; query += block_queries(op.shape)) {
    Block block{op, kernel, key_head * group, group, segment.query_begin + query, query};
    block.count = std::min(block_queries(op.shape), segment.query_count - query);
    block.visible = query + block.count;
    block.stride = score_stride(block.visible);
    const int64_t next = block.row + block.count, end = segment.query_begin + segment.query_count;
    prefetch_block(op, key_head, next, std::min(end, next + block_queries(op.shape)));
    backward_block(block, scratch);
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
