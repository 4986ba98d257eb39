#pragma once

#include <cstdint>
#include <vector>

#include "apps/finetune/trainer.h"

// What the benches of whole steps train: SmolLM2's shape with random weights on scattered tokens.
namespace sluice::bench {

ModelConfig smollm2(int64_t layers);

// Norm weights 1, others uniform with the standard deviation 0.02 that such models start from.
void fill_weights(TensorStore& store);
// All of them, in the pieces of an export, which end there.
void read_weights(const TensorStore& store);

struct Workload {
  int micro_batch_count = 2;
  int64_t rows = 2;
  int64_t row_tokens = 512;
  int64_t tokens() const { return micro_batch_count * rows * row_tokens; }
};
// As many rows of the embedding as tokens, or as the vocabulary has: what the plan reckons with.
std::vector<finetune::MicroBatch> scattered_batches(const Workload& workload, int64_t vocab_size);
finetune::TrainerOptions trainer_options(DType dtype, const Workload& workload);

}  // namespace sluice::bench
