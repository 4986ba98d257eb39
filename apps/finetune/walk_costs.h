#pragma once

#include <functional>

#include "apps/finetune/trainer.h"
#include "engine/schedule/predict.h"

namespace sluice::finetune {

using OpSeconds = std::function<double(const gpu::Op&)>;

// What the ops of a training step cost, access by access, each micro-batch as large as `limits` say: the
// trainer's ops and those that the engine adds (preparing weights, rounding gradients).
WalkCosts training_costs(gpu::Device& device, const DecoderSpec& spec, const Decoder& decoder,
                         const TrainerOptions& options, const BatchLimits& limits, const PlannedWalk& planned,
                         const OpSeconds& seconds);

// A step of micro-batches of that size, by the plan that `options` make. From shapes alone: no weights, no
// memory.
Prediction predict_step(gpu::Device& device, const ModelConfig& config, const TrainerOptions& options,
                        const BatchLimits& limits, const OpSeconds& seconds, const LaneRates& rates);

}  // namespace sluice::finetune
