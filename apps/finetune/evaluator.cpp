#include "apps/finetune/forward_pass.h"

namespace sluice::finetune {
namespace {

size_t head_bytes(const ModelConfig& config, const BatchLimits& limits, DType dtype) {
  const Decoder decoder(config, dtype);
  return measure_scratch([&](Scratch& memory) { carve_head(memory, decoder, limits.tokens, false); });
}

std::vector<PlanPart> evaluator_parts(const ModelConfig& config, const BatchLimits& limits,
                                      const ForwardOptions& options) {
  return {device_part(walk_part::kInputs, StepInputs::size_bytes(limits, config.vocab_size)),
          device_part(walk_part::kHead, head_bytes(config, limits, options.compute_dtype) *
                                            static_cast<size_t>(limits.micro_batch_count))};
}

}  // namespace

Plan Evaluator::plan(gpu::Device& device, const ModelConfig& config, const BatchLimits& limits,
                     const ForwardOptions& options) {
  return ForwardWalk::plan(device, config, limits, options, evaluator_parts(config, limits, options));
}

Evaluator::Evaluator(gpu::Device& device, Executor& executor, const ModelConfig& config,
                     const BatchLimits& limits, const ForwardOptions& options)
    : walk_(device, executor, config, limits, options, evaluator_parts(config, limits, options)),
      losses_(static_cast<size_t>(limits.micro_batch_count),
              std::vector<float>(static_cast<size_t>(limits.tokens))) {}

HeadViews Evaluator::head(int micro_batch, int64_t tokens) const {
  const size_t stride = head_bytes(walk_.decoder().config(), walk_.limits(), walk_.decoder().dtype());
  std::byte* const begin = walk_.engine().device_part(walk_part::kHead);
  Scratch memory(begin + stride * static_cast<size_t>(micro_batch), stride);
  return carve_head(memory, walk_.decoder(), tokens, false);
}

EvalResult Evaluator::evaluate(std::span<const MicroBatch> batches) {
  const StepInputs inputs(batches, walk_.decoder().config().vocab_size);
  const int count = inputs.micro_batch_count();
  const Decoder& decoder = walk_.decoder();
  const auto views = [&](int batch) { return inputs.views(batch, walk_.inputs()); };
  walk_.begin(inputs.upload(), inputs.rows());
  for (int batch = 0; batch < count; ++batch) {
    const BatchViews view = views(batch);
    engine().submit(gpu::GatherRows{walk_.embedding_rows(inputs.rows().size()), view.index,
                                    walk_.hidden(batch, view.tokens())});
  }
  for (const BlockId layer : walk_.spec().layers) {
    const Lease weights = engine().acquire(layer);
    for (int batch = 0; batch < count; ++batch) walk_.run_layer(weights, views(batch), batch, nullptr);
  }
  {
    const Lease norm = engine().acquire(walk_.spec().final_norm);
    for (int batch = 0; batch < count; ++batch) {
      const int64_t tokens = views(batch).tokens();
      const HeadViews at = head(batch, tokens);
      decoder.forward_final_norm(*norm, walk_.hidden(batch, tokens), at.hidden, at.rstd, walk_.bench());
    }
  }
  for (size_t piece = 0; piece < walk_.spec().head_pieces.size(); ++piece) {
    const Lease weights = engine().acquire(walk_.spec().head_pieces[piece]);
    for (int batch = 0; batch < count; ++batch) {
      const BatchViews view = views(batch);
      const HeadViews at = head(batch, view.tokens());
      decoder.forward_head(*weights, walk_.head_piece(piece), view, at.hidden, at.sums, walk_.bench());
    }
  }
  std::optional<gpu::Event> ready;
  for (int batch = 0; batch < count; ++batch) {
    const BatchViews view = views(batch);
    const HeadViews at = head(batch, view.tokens());
    engine().submit(gpu::TokenLoss{.max = at.sums.max,
                                   .sum = at.sums.sum,
                                   .target_logit = at.sums.target_logit,
                                   .targets = view.targets,
                                   .weights = view.weights,
                                   .loss = at.loss});
    ready = engine().download(losses_[static_cast<size_t>(batch)].data(), at.loss.data, at.loss.span_bytes());
  }
  if (ready) ready->wait();
  EvalResult result{.nll_sum = 0, .weight_sum = inputs.label_weight(), .label_count = inputs.label_count()};
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    for (size_t token = 0; token < batches[batch].tokens.size(); ++token) {
      result.nll_sum += static_cast<double>(losses_[batch][token]);
    }
  }
  return result;
}

}  // namespace sluice::finetune
