#include "apps/finetune/dry_run.h"

#include <algorithm>

#include "engine/api/engine_plan.h"

namespace sluice::finetune {
namespace {

Scratch scratch_at(std::byte* begin, size_t size_bytes) {
  return begin == nullptr ? Scratch::measuring() : Scratch(begin, size_bytes);
}

}  // namespace

DryRun::DryRun(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
               const BatchLimits& limits, Submit submit, const Memory& memory)
    : device_(device),
      spec_(spec),
      decoder_(decoder),
      limits_(limits),
      memory_(memory),
      inputs_(scratch_at(memory.inputs, memory.size_bytes)),
      scratch_(scratch_at(memory.scratch, memory.size_bytes)),
      bench_{.submit = [submit = std::move(submit)](const gpu::Op& op) { submit(op); },
             .scratch = &scratch_} {}

gpu::View DryRun::activation() {
  return view(decoder_.dtype(), limits_.tokens, decoder_.config().hidden_size);
}

PreparedBlock DryRun::shape(BlockId block) const {
  if (memory_.weights == nullptr) return Engine::shape_of(device_, spec_.model, block, decoder_.dtype());
  return lay_out_block(device_, spec_.model, block, decoder_.dtype(), {true, true}, memory_.weights);
}

void DryRun::prepare(BlockId block) {
  const BlockLayout layout(spec_.model, block);
  const gpu::View landed =
      view(DType::f32, 1, static_cast<int64_t>(layout.fetch_bytes(decoder_.dtype()) / sizeof(float)));
  submit_preparation(layout, spec_.model.block(block), decoder_.dtype(), shape(block), landed.data,
                     bench_.submit);
}

Decoder::HeadPiece DryRun::piece(size_t index) const {
  const BlockPart& part = spec_.model.block(spec_.head_pieces.at(index)).parts[0];
  return {.begin = part.row_begin, .rows = part.row_end - part.row_begin, .first = index == 0};
}

GradientLease DryRun::gradients(BlockId block) {
  std::vector<gpu::View> views;
  for (const BlockPart& part : spec_.model.block(block).parts) {
    views.push_back(view(DType::f32, part.row_end - part.row_begin, spec_.model.tensor(part.tensor).cols));
  }
  return GradientLease(block, 0, {views});
}

// With a cache, a row's queries may see keys of earlier walks: as many as a row has tokens.
BatchViews DryRun::batch(bool training) {
  auto segments = std::make_shared<std::vector<gpu::AttentionSegment>>();
  for (int64_t row = 0; row < limits_.rows; ++row) {
    const int64_t begin = row * limits_.tokens_per_row;
    const int64_t count = std::min(limits_.tokens_per_row, limits_.tokens - begin);
    if (count > 0) segments->push_back({begin, count, begin, training ? count : limits_.tokens_per_row});
  }
  const int64_t tokens = limits_.tokens;
  return {.index = view(DType::i32, tokens, 1),
          .positions = view(DType::i32, tokens, 1),
          .targets = view(DType::i32, tokens, 1),
          .weights = view(DType::f32, tokens, 1),
          .order = view(DType::i32, tokens, 1),
          .begin = view(DType::i32, tokens + 1, 1),
          .segments = std::move(segments)};
}

RopeViews DryRun::rope() {
  const int64_t half = decoder_.config().head_dim / 2;
  return {view(DType::f32, limits_.tokens_per_row, half), view(DType::f32, limits_.tokens_per_row, half)};
}

LayerCache DryRun::cache() {
  const int64_t cols = decoder_.config().kv_head_count * decoder_.config().head_dim;
  return {.keys = view(decoder_.dtype(), limits_.cache_rows, cols),
          .values = view(decoder_.dtype(), limits_.cache_rows, cols),
          .rows = view(DType::i32, limits_.tokens, 1)};
}

void DryRun::round_gradient(BlockId block) {
  const int64_t elements = BlockLayout(spec_.model, block).logical_elements();
  const gpu::View sum = view(DType::f32, 1, elements);
  bench_.submit(gpu::Add{sum, sum, sum});
  bench_.submit(gpu::Cast{sum, view(decoder_.dtype(), 1, elements)});
}

void DryRun::embed(int64_t rows) {
  bench_.submit(gpu::GatherRows{view(decoder_.dtype(), rows, decoder_.config().hidden_size),
                                batch(true).index, activation()});
}

void DryRun::embedding_backward(int64_t rows, bool accumulate) {
  const gpu::View dy = activation();
  bench_.submit(gpu::EmbeddingBackward{.dy = dy,
                                       .order = batch(true).order,
                                       .begin = view(DType::i32, rows + 1, 1),
                                       .d_rows = view(DType::f32, rows, dy.cols),
                                       .accumulate = accumulate});
}

void DryRun::forward_layer(BlockId block, bool training) {
  const gpu::View x = activation();
  const SavedLayer saved = decoder_.carve_saved(inputs_, limits_.tokens);
  const LayerCache layer_cache = cache();
  decoder_.forward_layer(shape(block), rope(), batch(training), x, x, saved,
                         limits_.cache_rows > 0 ? &layer_cache : nullptr, bench_);
}

void DryRun::backward_layer(BlockId block, GradientLease& gradients) {
  const gpu::View x = activation();
  const SavedLayer saved = decoder_.carve_saved(inputs_, limits_.tokens);
  decoder_.backward_layer(shape(block), gradients, 0, rope(), batch(true), x, x, saved, bench_);
}

void DryRun::forward_final_norm() {
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, false);
  decoder_.forward_final_norm(shape(spec_.final_norm), activation(), head.hidden, head.rstd, bench_);
}

void DryRun::backward_final_norm(GradientLease& gradients) {
  const gpu::View x = activation();
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, true);
  decoder_.backward_final_norm(shape(spec_.final_norm), gradients, 0, x, head.rstd, head.d_hidden, x, bench_);
}

void DryRun::forward_head(size_t index) {
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, false);
  decoder_.forward_head(shape(spec_.head_pieces.at(index)), piece(index), batch(true), head.hidden, head.sums,
                        bench_);
}

void DryRun::backward_head(size_t index, GradientLease& gradients) {
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, true);
  decoder_.backward_head(shape(spec_.head_pieces.at(index)), gradients, 0, piece(index), batch(true),
                         head.hidden, head.sums, 1, head.d_hidden, bench_);
}

void DryRun::head_once(size_t index, GradientLease& gradients) {
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, true);
  const PreparedBlock weights = shape(spec_.head_pieces.at(index));
  const BatchViews views = batch(true);
  const Decoder::HeadPiece which = piece(index);
  for_each_head_chunk(limits_.tokens, [&](Decoder::HeadChunk chunk) {
    const gpu::View logits = view(DType::f32, chunk.end - chunk.begin, which.rows);
    decoder_.forward_head_chunk(weights, which, chunk, views, head.hidden, head.sums, logits, bench_);
    decoder_.backward_head_chunk(weights, gradients, 0, which, chunk, views, head.hidden, head.sums, 1,
                                 logits, head.d_hidden, bench_);
  });
}

void DryRun::token_loss() {
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, false);
  const BatchViews views = batch(true);
  bench_.submit(gpu::TokenLoss{.max = head.sums.max,
                               .sum = head.sums.sum,
                               .target_logit = head.sums.target_logit,
                               .targets = views.targets,
                               .weights = views.weights,
                               .loss = head.loss});
}

void DryRun::choose(size_t index) {
  const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, false);
  decoder_.choose(shape(spec_.head_pieces.at(index)), piece(index), head.hidden.row_range(0, limits_.rows),
                  view(DType::f32, limits_.rows, 1), view(DType::i32, limits_.rows, 1), bench_);
}

}  // namespace sluice::finetune
