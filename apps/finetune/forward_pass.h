#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/model/decoder.h"
#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/step_inputs.h"
#include "apps/finetune/walk_memory.h"
#include "engine/api/engine.h"

// Walks that only read weights: loss of given text, and greedy continuations. Weights stay on the device from
// walk to walk as far as the limit allows, else they are streamed.
namespace sluice::finetune {

struct ForwardOptions {
  DType compute_dtype = DType::f32;
  int prefetch_distance = 1;
  std::optional<size_t> device_limit_bytes;
  std::vector<PlanPart> host_parts;  // what the process holds besides, shown in the plan
};

// What both walks share: engine, scratch, rope table, and layers on one set of activations.
class ForwardWalk {
 public:
  ForwardWalk(gpu::Device& device, Executor& executor, const ModelConfig& config, const BatchLimits& limits,
              const ForwardOptions& options, std::vector<PlanPart> parts);
  static Plan plan(gpu::Device& device, const ModelConfig& config, const BatchLimits& limits,
                   const ForwardOptions& options, std::vector<PlanPart> parts);

  Engine& engine() const { return *engine_; }
  const Decoder& decoder() const { return decoder_; }
  const DecoderSpec& spec() const { return spec_; }
  const Workbench& bench() const { return bench_; }
  const BatchLimits& limits() const { return limits_; }
  // Hidden states of a micro-batch, in place from layer to layer.
  gpu::View hidden(int micro_batch, int64_t tokens) const;
  // Uploads the inputs and gathers the embeddings of `rows` into hidden states.
  void begin(std::span<const int32_t> upload, const std::vector<int32_t>& rows);
  gpu::View embedding_rows(size_t count) const;
  std::byte* inputs() const { return engine_->device_part(walk_part::kInputs); }
  // One layer over one micro-batch.
  void run_layer(const Lease& weights, const BatchViews& batch, int micro_batch,
                 const LayerCache* cache) const;
  Decoder::HeadPiece head_piece(size_t piece) const;

 private:
  BatchLimits limits_;
  Decoder decoder_;
  DecoderSpec spec_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scratch> scratch_;
  Workbench bench_;
  RopeViews rope_;
};

struct EvalResult {
  double nll_sum = 0;     // weighted -log p over labelled tokens, natural log
  double weight_sum = 0;  // of their weights
  int64_t label_count = 0;
};

class Evaluator {
 public:
  Evaluator(gpu::Device& device, Executor& executor, const ModelConfig& config, const BatchLimits& limits,
            const ForwardOptions& options);
  static Plan plan(gpu::Device& device, const ModelConfig& config, const BatchLimits& limits,
                   const ForwardOptions& options);

  Engine& engine() { return walk_.engine(); }
  // Sums over a window of at most limits.micro_batch_count micro-batches, which share each pass over the
  // weights.
  EvalResult evaluate(std::span<const MicroBatch> batches);

 private:
  HeadViews head(int micro_batch, int64_t tokens) const;

  ForwardWalk walk_;
  std::vector<std::vector<float>> losses_;
};

class Generator {
 public:
  // Prompts must not be empty; all of them share each pass over the weights.
  Generator(gpu::Device& device, Executor& executor, const ModelConfig& config,
            std::vector<std::vector<int32_t>> prompts, int64_t max_new_tokens, const ForwardOptions& options);
  static Plan plan(gpu::Device& device, const ModelConfig& config,
                   const std::vector<std::vector<int32_t>>& prompts, int64_t max_new_tokens,
                   const ForwardOptions& options);

  Engine& engine() { return walk_.engine(); }
  // The greedy continuation of each prompt, up to max_new_tokens or the first end token, which is included.
  std::vector<std::vector<int32_t>> generate(std::span<const int64_t> end_tokens);

 private:
  struct Pass;  // the tokens of one walk
  std::vector<int32_t> run(const Pass& pass);
  LayerCache cache(int layer, const gpu::View& rows) const;

  std::vector<std::vector<int32_t>> prompts_;
  int64_t max_new_tokens_;
  int64_t capacity_;  // cache rows a prompt
  ForwardWalk walk_;
};

}  // namespace sluice::finetune
