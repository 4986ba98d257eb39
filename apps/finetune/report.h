#pragma once

#include <cstdint>
#include <string>

#include "apps/finetune/data/dataset.h"
#include "apps/finetune/data/tokenizer.h"
#include "apps/finetune/options.h"
#include "apps/finetune/weights.h"

// What training tells people. Text only; nothing is printed here.
namespace sluice::finetune {

struct TrainingFacts {
  int64_t example_count = 0;
  int64_t total_steps = 0;
  int64_t steps_per_epoch = 0;
  int64_t trainable_parameters = 0;
};

// The block of Hugging Face's Trainer, word for word, as so many tools print it.
std::string training_banner(const TrainOptions& options, const TrainingFacts& facts);

// A row as the model sees it: [[what is context only]] stands in brackets, the rest is learnt. Long rows are
// shown in part.
std::string example_text(const Dataset& data, int64_t row, const Tokenizer& tokenizer);

// A warning where most of what moved is lost by rounding to the dtype of the export; else an empty text.
std::string export_warning(const ExportReport& exported);

// "2 h 05 min", "3 min 20 s", "4.2 s".
std::string duration_text(double seconds);

}  // namespace sluice::finetune
