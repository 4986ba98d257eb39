#include "bench/support/train_workload.h"

#include <algorithm>
#include <string>

#include "cpu_optim/convert.h"

namespace sluice::bench {

ModelConfig smollm2(int64_t layers) {
  ModelConfig config;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.layer_count = layers;
  config.head_count = 9;
  config.kv_head_count = 3;
  config.head_dim = 64;
  config.vocab_size = 49152;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5f;
  config.rope.theta = 100000;
  config.tied_embeddings = true;
  return config;
}

namespace {

// A 64-bit mix (splitmix64, Steele et al. 2014): the bench's random numbers are a function of their index.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr int64_t kPieceElements = int64_t{2} << 20;

template <class Use>
void for_each_piece(const ModelSpec& model, const Use& use) {
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(model.tensors.size()); ++tensor) {
    const TensorSpec& spec = model.tensor(TensorId{tensor});
    const int64_t step = std::max<int64_t>(1, kPieceElements / spec.cols);
    for (int64_t row = 0; row < spec.rows; row += step)
      use(TensorId{tensor}, row, std::min(step, spec.rows - row));
  }
}

}  // namespace

void fill_weights(TensorStore& store) {
  std::vector<float> piece;
  for_each_piece(store.model(), [&](TensorId tensor, int64_t row, int64_t rows) {
    const TensorSpec& spec = store.model().tensor(tensor);
    piece.resize(static_cast<size_t>(rows * spec.cols));
    for (size_t i = 0; i < piece.size(); ++i) {
      const uint64_t bits =
          mix((static_cast<uint64_t>(tensor.value) << 40) + static_cast<uint64_t>(row * spec.cols) + i);
      piece[i] = spec.rows == 1 ? 1.0f : 0.0693f * (static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f);
    }
    store.write_rows(tensor, row, rows, piece.data());
  });
}

void read_weights(const TensorStore& store) {
  for_each_piece(store.model(), [&](TensorId tensor, int64_t row, int64_t rows) {
    std::vector<float> masters(static_cast<size_t>(rows * store.model().tensor(tensor).cols));
    store.read_rows(tensor, row, rows, masters.data());
    std::vector<BFloat16> stored(masters.size());
    cpu_optim::convert(masters, stored);
  });
}

std::vector<finetune::MicroBatch> scattered_batches(const Workload& workload, int64_t vocab_size) {
  std::vector<finetune::MicroBatch> batches(static_cast<size_t>(workload.micro_batch_count));
  for (size_t b = 0; b < batches.size(); ++b) {
    finetune::MicroBatch& batch = batches[b];
    batch.document_offsets.push_back(0);
    // A prime that divides no vocabulary of ours: all tokens of a step differ while there are enough.
    const auto token = [&](int64_t row, int64_t t) {
      const int64_t index = (static_cast<int64_t>(b) * workload.rows + row) * workload.row_tokens + t;
      return static_cast<int32_t>(index * 7919 % vocab_size);
    };
    for (int64_t row = 0; row < workload.rows; ++row) {
      for (int64_t t = 0; t < workload.row_tokens; ++t) {
        batch.tokens.push_back(token(row, t));
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.targets.push_back(t + 1 < workload.row_tokens ? token(row, t + 1) : -1);
        batch.weights.push_back(1);
      }
      batch.document_offsets.push_back(static_cast<int32_t>(batch.tokens.size()));
      batch.row_sources.push_back("row " + std::to_string(row));
    }
  }
  return batches;
}

finetune::TrainerOptions trainer_options(DType dtype, const Workload& workload) {
  finetune::TrainerOptions options{.compute_dtype = dtype,
                                   .limits = {.micro_batch_count = workload.micro_batch_count,
                                              .tokens = workload.rows * workload.row_tokens,
                                              .rows = workload.rows,
                                              .tokens_per_row = workload.row_tokens}};
  options.adam = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  return options;
}

}  // namespace sluice::bench
