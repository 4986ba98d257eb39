#include "apps/finetune/forward_pass.h"
#include "apps/finetune/model/rope_table.h"
#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

size_t hidden_bytes(const Decoder& decoder, const BatchLimits& limits) {
  return round_up(
      static_cast<size_t>(limits.tokens * decoder.config().hidden_size) * size_bytes(decoder.dtype()),
      Scratch::kAlignment);
}

int64_t most_embedding_rows(const Decoder& decoder, const BatchLimits& limits) {
  return std::min(decoder.config().vocab_size, limits.tokens * limits.micro_batch_count);
}

WalkSpec forward_walk(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                      const BatchLimits& limits, std::vector<PlanPart> parts) {
  const OpNeeds needs = measure_ops(device, spec, decoder, limits, false);
  const size_t saved = measure_scratch([&](Scratch& memory) { decoder.carve_saved(memory, limits.tokens); });
  const int64_t rows = most_embedding_rows(decoder, limits);
  parts.insert(
      parts.end(),
      {device_part(walk_part::kRope,
                   static_cast<size_t>(limits.tokens_per_row * decoder.config().head_dim) * 4),
       device_part(walk_part::kEmbeddingRows,
                   static_cast<size_t>(rows * decoder.config().hidden_size) * size_bytes(decoder.dtype())),
       device_part(walk_part::kHidden,
                   hidden_bytes(decoder, limits) * static_cast<size_t>(limits.micro_batch_count)),
       device_part(walk_part::kScratch, needs.scratch_bytes + saved)});
  return {.accesses = forward_accesses(spec, limits.micro_batch_count),
          .tape = {},
          .micro_batch_count = limits.micro_batch_count,
          .fixed_parts = std::move(parts),
          .workspace_bytes = needs.workspace_bytes,
          .row_gradient_tensors = {},
          .max_fetched_rows = rows,
          .max_row_cols = decoder.config().hidden_size};
}

EngineOptions engine_options(const ForwardOptions& options) {
  return {.compute_dtype = options.compute_dtype,
          .prefetch_distance = options.prefetch_distance,
          .device_limit_bytes = options.device_limit_bytes,
          .training = false,
          .optimizer = {}};
}

std::vector<PlanPart> with_host_parts(std::vector<PlanPart> parts, const ForwardOptions& options) {
  parts.insert(parts.end(), options.host_parts.begin(), options.host_parts.end());
  return parts;
}

}  // namespace

Plan ForwardWalk::plan(gpu::Device& device, const ModelConfig& config, const BatchLimits& limits,
                       const ForwardOptions& options, std::vector<PlanPart> parts) {
  const Decoder decoder(config, options.compute_dtype);
  const DecoderSpec spec = make_decoder_spec(config);
  return Engine::plan_for(
      device, spec.model,
      forward_walk(device, spec, decoder, limits, with_host_parts(std::move(parts), options)),
      engine_options(options));
}

ForwardWalk::ForwardWalk(gpu::Device& device, Executor& executor, const ModelConfig& config,
                         const BatchLimits& limits, const ForwardOptions& options,
                         std::vector<PlanPart> parts)
    : limits_(limits), decoder_(config, options.compute_dtype), spec_(make_decoder_spec(config)) {
  engine_ = std::make_unique<Engine>(
      device, executor, spec_.model,
      forward_walk(device, spec_, decoder_, limits, with_host_parts(std::move(parts), options)),
      engine_options(options));
  scratch_ = std::make_unique<Scratch>(engine_->device_part(walk_part::kScratch),
                                       engine_->plan().part(walk_part::kScratch).size_bytes);
  bench_ = {.submit = [this](gpu::Op op) { engine_->submit(std::move(op)); }, .scratch = scratch_.get()};
  const RopeTable table = make_rope_table(config.rope, config.head_dim, limits.tokens_per_row);
  std::byte* const begin = engine_->device_part(walk_part::kRope);
  const size_t half = table.cos.size() * 4;
  rope_ = {gpu::View(begin, DType::f32, table.positions, table.half_dim),
           gpu::View(begin + half, DType::f32, table.positions, table.half_dim)};
  engine_->upload(begin, table.cos.data(), half);
  engine_->upload(begin + half, table.sin.data(), half);
  engine_->compute().record().wait();  // the table's memory ends here
}

gpu::View ForwardWalk::hidden(int micro_batch, int64_t tokens) const {
  return {engine_->device_part(walk_part::kHidden) +
              hidden_bytes(decoder_, limits_) * static_cast<size_t>(micro_batch),
          decoder_.dtype(), tokens, decoder_.config().hidden_size};
}

gpu::View ForwardWalk::embedding_rows(size_t count) const {
  return {engine_->device_part(walk_part::kEmbeddingRows), decoder_.dtype(), static_cast<int64_t>(count),
          decoder_.config().hidden_size};
}

void ForwardWalk::begin(std::span<const int32_t> upload, const std::vector<int32_t>& rows) {
  engine_->upload(inputs(), upload.data(), upload.size_bytes());
  engine_->fetch_rows(spec_.embedding, rows, engine_->device_part(walk_part::kEmbeddingRows));
  engine_->begin_walk();
}

void ForwardWalk::run_layer(const Lease& weights, const BatchViews& batch, int micro_batch,
                            const LayerCache* cache) const {
  const Scratch::Scope scope(*scratch_);
  const gpu::View x = hidden(micro_batch, batch.tokens());
  const SavedLayer saved = decoder_.carve_saved(*scratch_, batch.tokens());
  decoder_.forward_layer(*weights, rope_, batch, x, x, saved, cache, bench_);
}

Decoder::HeadPiece ForwardWalk::head_piece(size_t piece) const {
  const BlockPart& part = spec_.model.block(spec_.head_pieces[piece]).parts[0];
  return {.begin = part.row_begin, .rows = part.row_end - part.row_begin, .first = piece == 0};
}

}  // namespace sluice::finetune
