#include "apps/finetune/walk_memory.h"

#include <algorithm>

namespace sluice::finetune {
namespace {

// Submits the ops of one micro-batch to nowhere, to see what they need.
class Measurement {
 public:
  Measurement(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder, const BatchLimits& limits)
      : device_(device), spec_(spec), decoder_(decoder), limits_(limits) {}

  OpNeeds run(bool training) {
    forward(training);
    if (training) backward();
    return {.scratch_bytes = scratch_.peak_bytes(), .workspace_bytes = workspace_bytes_};
  }

 private:
  gpu::View view(DType dtype, int64_t rows, int64_t cols) { return inputs_.take(dtype, rows, cols); }
  PreparedBlock shape(BlockId block) const {
    return Engine::shape_of(device_, spec_.model, block, decoder_.dtype());
  }
  GradientLease gradient_shape(BlockId block) {
    std::vector<gpu::View> views;
    for (const BlockPart& part : spec_.model.block(block).parts) {
      views.push_back(view(DType::f32, part.row_end - part.row_begin, spec_.model.tensor(part.tensor).cols));
    }
    return GradientLease(block, 0, {views});
  }
  Decoder::HeadPiece piece() const {
    return {.begin = 0, .rows = spec_.model.block(spec_.head_pieces[0]).parts[0].row_end, .first = true};
  }

  // With a cache, a row's queries may see keys of earlier walks: as many as a row has tokens.
  BatchViews batch(bool cached = false) {
    auto segments = std::make_shared<std::vector<gpu::AttentionSegment>>();
    for (int64_t row = 0; row < limits_.rows; ++row) {
      const int64_t begin = row * limits_.tokens_per_row;
      const int64_t count = std::min(limits_.tokens_per_row, limits_.tokens - begin);
      if (count > 0) segments->push_back({begin, count, begin, cached ? limits_.tokens_per_row : count});
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
  RopeViews rope() {
    const int64_t half = decoder_.config().head_dim / 2;
    return {view(DType::f32, limits_.tokens_per_row, half), view(DType::f32, limits_.tokens_per_row, half)};
  }

  LayerCache cache() {
    const int64_t cols = decoder_.config().kv_head_count * decoder_.config().head_dim;
    return {.keys = view(decoder_.dtype(), limits_.cache_rows, cols),
            .values = view(decoder_.dtype(), limits_.cache_rows, cols),
            .rows = view(DType::i32, limits_.tokens, 1)};
  }

  void forward(bool training) {
    const gpu::View x = view(decoder_.dtype(), limits_.tokens, decoder_.config().hidden_size);
    const SavedLayer saved = decoder_.carve_saved(inputs_, limits_.tokens);
    const LayerCache layer_cache = cache();
    decoder_.forward_layer(shape(spec_.layers.at(0)), rope(), batch(!training), x, x, saved,
                           limits_.cache_rows > 0 ? &layer_cache : nullptr, bench_);
    const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, false);
    decoder_.forward_final_norm(shape(spec_.final_norm), x, head.hidden, head.rstd, bench_);
    decoder_.forward_head(shape(spec_.head_pieces.at(0)), piece(), batch(), head.hidden, head.sums, bench_);
    if (limits_.cache_rows == 0) return;
    decoder_.choose(shape(spec_.head_pieces.at(0)), piece(), head.hidden.row_range(0, limits_.rows),
                    view(DType::f32, limits_.rows, 1), view(DType::i32, limits_.rows, 1), bench_);
  }

  void backward() {
    const gpu::View x = view(decoder_.dtype(), limits_.tokens, decoder_.config().hidden_size);
    const SavedLayer saved = decoder_.carve_saved(inputs_, limits_.tokens);
    GradientLease layer = gradient_shape(spec_.layers.at(0));
    decoder_.backward_layer(shape(spec_.layers.at(0)), layer, 0, rope(), batch(), x, x, saved, bench_);
    const HeadViews head = carve_head(inputs_, decoder_, limits_.tokens, true);
    GradientLease pieces = gradient_shape(spec_.head_pieces.at(0));
    decoder_.backward_head(shape(spec_.head_pieces.at(0)), pieces, 0, piece(), batch(), head.hidden,
                           head.sums, 1, head.d_hidden, bench_);
    GradientLease norm = gradient_shape(spec_.final_norm);
    decoder_.backward_final_norm(shape(spec_.final_norm), norm, 0, x, head.rstd, head.d_hidden, x, bench_);
    submit(gpu::EmbeddingBackward{.dy = x,
                                  .order = batch().order,
                                  .begin = batch().begin,
                                  .d_rows = view(DType::f32, limits_.tokens, x.cols)});
  }

  void submit(const gpu::Op& op) {
    workspace_bytes_ = std::max(workspace_bytes_, device_.ops().workspace_bytes(op));
  }

  gpu::Device& device_;
  const DecoderSpec& spec_;
  const Decoder& decoder_;
  const BatchLimits& limits_;
  Scratch inputs_ = Scratch::measuring();
  Scratch scratch_ = Scratch::measuring();
  size_t workspace_bytes_ = 0;
  Workbench bench_{.submit = [this](const gpu::Op& op) { submit(op); }, .scratch = &scratch_};
};

}  // namespace

HeadViews carve_head(Scratch& memory, const Decoder& decoder, int64_t tokens, bool training) {
  const int64_t hidden = decoder.config().hidden_size;
  const auto column = [&] { return memory.take(DType::f32, tokens, 1); };
  HeadViews head;
  head.hidden = memory.take(decoder.dtype(), tokens, hidden);
  head.rstd = column();
  if (training) head.d_hidden = memory.take(DType::f32, tokens, hidden);
  head.sums = {column(), column(), column()};
  head.loss = column();
  return head;
}

OpNeeds measure_ops(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                    const BatchLimits& limits, bool training) {
  return Measurement(device, spec, decoder, limits).run(training);
}

PlanPart device_part(const char* name, size_t size_bytes) {
  return {name, Tier::device, size_bytes, 0};
}

}  // namespace sluice::finetune
