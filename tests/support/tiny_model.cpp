#include "tests/support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/base/float_bits.h"
#include "engine/base/math.h"

namespace sluice::test {

using finetune::MicroBatch;

ModelConfig tiny_config(bool tied) {
  ModelConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.layer_count = 3;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 16;  // queries are wider than the hidden state
  config.vocab_size = 203;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-5f;
  config.rope = {.theta = 10000,
                 .scaling = RopeScaling::llama3,
                 .factor = 8,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4,
                 .original_max_position_embeddings = 64};
  config.tied_embeddings = tied;
  return config;
}

ModelConfig two_piece_config(bool tied) {
  ModelConfig config = tiny_config(tied);
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.layer_count = 1;
  config.head_count = 2;
  config.kv_head_count = 1;
  config.head_dim = 8;
  config.vocab_size = kVocabularyPieceRows + 300;
  return config;
}

uint64_t counter_hash(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

float counter_uniform(uint64_t seed, uint64_t index) {
  return static_cast<float>(counter_hash(seed, index) >> 40) * 0x1p-23f - 1.0f;
}

void fill_weights(TensorStore& store, uint64_t seed, WeightBits bits) {
  for (size_t tensor = 0; tensor < store.model().tensors.size(); ++tensor) {
    const TensorSpec& spec = store.model().tensors[tensor];
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
    const float scale = (spec.name.find("embed") != std::string::npos ? 4.0f : 1.0f) /
                        std::sqrt(static_cast<float>(spec.cols));
    for (size_t i = 0; i < values.size(); ++i) {
      const float unit = counter_uniform(seed * 1000 + tensor, i);
      values[i] = spec.rows == 1 ? 1.0f + unit / 4 : unit * scale;
      if (bits == WeightBits::bf16) values[i] = to_float(to_bfloat16(values[i]));
    }
    store.write_rows(TensorId{static_cast<int32_t>(tensor)}, 0, spec.rows, values.data());
  }
}

MicroBatch random_batch(uint64_t seed, int64_t vocab_size, std::span<const int64_t> row_lengths) {
  MicroBatch batch;
  uint64_t draw = 0;
  const auto next = [&](int64_t below) {
    return static_cast<int32_t>(counter_hash(seed, draw++) % static_cast<uint64_t>(below));
  };
  batch.document_offsets.push_back(0);
  for (const int64_t length : row_lengths) {
    for (int64_t t = 0; t < length; ++t) {
      batch.tokens.push_back(next(vocab_size));
      batch.positions.push_back(static_cast<int32_t>(t));
      if (t > 0 && next(5) != 0) {  // of the token before
        batch.targets.back() = batch.tokens.back();
        batch.weights.back() = 0.5f + 0.5f * static_cast<float>(next(3));
      }
      batch.targets.push_back(-1);
      batch.weights.push_back(0);
    }
    batch.row_sources.push_back("data.jsonl:" + std::to_string(batch.row_sources.size() + 1));
    batch.document_offsets.push_back(static_cast<int32_t>(batch.tokens.size()));
  }
  const size_t padded = round_up(batch.tokens.size(), static_cast<size_t>(finetune::kTokenPadding));
  batch.tokens.resize(padded, 0);
  batch.positions.resize(padded, 0);
  batch.targets.resize(padded, -1);
  batch.weights.resize(padded, 0);
  return batch;
}

std::vector<Window> ragged_windows(uint64_t seed, int64_t vocab_size, int step_count, int micro_batch_count) {
  constexpr int64_t kLongestRow = 90;  // more than a tile of attention
  std::vector<Window> windows(static_cast<size_t>(step_count));
  for (int step = 0; step < step_count; ++step) {
    const int count = std::max(1, micro_batch_count - (step + 1 == step_count ? 1 : 0));
    for (int micro_batch = 0; micro_batch < count; ++micro_batch) {
      const uint64_t batch_seed = counter_hash(seed, static_cast<uint64_t>(step * 100 + micro_batch));
      std::vector<int64_t> lengths;
      for (uint64_t row = 0; row < 1 + batch_seed % 3; ++row) {
        lengths.push_back(
            1 + static_cast<int64_t>(counter_hash(batch_seed, row) % static_cast<uint64_t>(kLongestRow)));
      }
      lengths.push_back(7);  // never a window without a label
      windows[static_cast<size_t>(step)].push_back(random_batch(batch_seed, vocab_size, lengths));
    }
  }
  return windows;
}

finetune::BatchLimits limits_of(std::span<const Window> windows) {
  finetune::BatchLimits limits;
  for (const Window& window : windows) {
    limits.micro_batch_count = std::max(limits.micro_batch_count, static_cast<int>(window.size()));
    for (const MicroBatch& batch : window) {
      limits.tokens = std::max(limits.tokens, static_cast<int64_t>(batch.tokens.size()));
      limits.rows = std::max(limits.rows, static_cast<int64_t>(batch.row_sources.size()));
      for (const int32_t position : batch.positions)
        limits.tokens_per_row = std::max(limits.tokens_per_row, int64_t{position} + 1);
    }
  }
  return limits;
}

}  // namespace sluice::test
