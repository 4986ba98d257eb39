#pragma once

#include <string>

#include "apps/finetune/step_inputs.h"
#include "engine/api/engine.h"

// What the decoder's walks need in device memory besides weights, gradients and tape, and the views into it.
namespace sluice::finetune {

// Names of the walk's own parts in the plan.
namespace walk_part {
inline constexpr const char* kInputs = "step inputs";
inline constexpr const char* kRope = "rope table";
inline constexpr const char* kEmbeddingRows = "embedding rows of the step";
inline constexpr const char* kEmbeddingGradients = "embedding gradients of the step";
inline constexpr const char* kOutputGradients = "gradients between layers";
inline constexpr const char* kHidden = "hidden states";
inline constexpr const char* kHead = "head";
inline constexpr const char* kLogits = "logits of a chunk of rows";
inline constexpr const char* kCache = "key/value cache";
inline constexpr const char* kScratch = "scratch";
}  // namespace walk_part

// Of one micro-batch, between final norm and loss. The sums and the loss are (T, 1) fp32.
struct HeadViews {
  gpu::View hidden;    // (T, C): after the final norm
  gpu::View rstd;      // (T, 1) fp32
  gpu::View d_hidden;  // (T, C) fp32; training only
  Decoder::HeadSums sums;
  gpu::View loss;
};
HeadViews carve_head(Scratch& memory, const Decoder& decoder, int64_t tokens, bool training);

// Peak of what `run` takes from a measuring scratch.
template <class Run>
size_t measure_scratch(const Run& run) {
  Scratch scratch = Scratch::measuring();
  run(scratch);
  return scratch.peak_bytes();
}

// Scratch and workspace that the ops of one micro-batch of the largest size need.
struct OpNeeds {
  size_t scratch_bytes = 0;
  size_t workspace_bytes = 0;
};
OpNeeds measure_ops(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                    const BatchLimits& limits, bool training);

PlanPart device_part(const char* name, size_t size_bytes);

}  // namespace sluice::finetune
