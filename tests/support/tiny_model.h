#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/model/config.h"
#include "apps/finetune/step_inputs.h"
#include "engine/memory/tensor_store.h"

// Decoders small enough to train hundreds of times in a test, with weights and data out of a counter-based
// hash.
namespace sluice::test {

// Three layers, grouped queries, llama3 RoPE, one piece of vocabulary.
ModelConfig tiny_config(bool tied);
// One layer and a vocabulary of two pieces, 8192 + 300.
ModelConfig two_piece_config(bool tied);

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators) of (seed, index).
uint64_t counter_hash(uint64_t seed, uint64_t index);
// In [-1, 1).
float counter_uniform(uint64_t seed, uint64_t index);

enum class WeightBits {
  fp32,  // low halves are in use
  bf16,  // exactly representable, so that every storage dtype holds the same values
};
// Matrices uniform in [-1, 1) / sqrt(cols) (the embedding: times 4), norm weights in [0.75, 1.25).
void fill_weights(TensorStore& store, uint64_t seed, WeightBits bits = WeightBits::fp32);

// Rows of the given lengths; about one target in five is hidden, and loss weights are 0.5, 1 or 1.5.
finetune::MicroBatch random_batch(uint64_t seed, int64_t vocab_size, std::span<const int64_t> row_lengths);

using Window = std::vector<finetune::MicroBatch>;
// Steps of micro-batches with ragged rows whose sizes differ from step to step; the last has one micro-batch
// less than the others.
std::vector<Window> ragged_windows(uint64_t seed, int64_t vocab_size, int step_count, int micro_batch_count);
// The least limits that all of them keep.
finetune::BatchLimits limits_of(std::span<const Window> windows);

}  // namespace sluice::test
