#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/learning_rate.h"
#include "apps/finetune/run_setup.h"
#include "apps/finetune/trainer.h"

namespace sluice::finetune {

// What a training run works with, made the same way for `plan` and `train`, so that what was planned is what
// runs.
struct TrainSetup {
  OpenModel model;
  Runtime runtime;
  std::unique_ptr<Dataset> data;     // null: planned without data
  std::unique_ptr<Batcher> batcher;  // likewise
  TrainerOptions trainer;
  int64_t steps_per_epoch = 0;  // 0 without data
  int64_t total_steps = 0;      // likewise
  std::string first_example;    // for the screen
  std::vector<std::string> warnings;
};

enum class WeightFiles { needed, optional };  // optional: config.json is enough

// Checks everything that needs no weights. Without --data the micro-batches are taken to be as large as
// --max_seq_length allows. The tokenizer is gone when this returns: training has no use for its memory.
TrainSetup set_up_training(const TrainOptions& options, WeightFiles weights = WeightFiles::needed);

// What the engine is given: tensors, blocks and state format.
ModelSpec trained_model(const TrainSetup& setup);

LearningRate learning_rate_of(const TrainOptions& options, int64_t total_steps);

// Throws Error(resource) where the plan asks for more than the machine could ever have. Returns a warning
// where it asks for more than is free now, else an empty text.
std::string check_machine_memory(const Plan& plan);

}  // namespace sluice::finetune
