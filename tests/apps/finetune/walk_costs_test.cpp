#include "apps/finetune/walk_costs.h"

#include <gtest/gtest.h>

#include "apps/finetune/runtime.h"
#include "gpu/op_cost.h"
#include "tests/support/tiny_model.h"

namespace sluice::finetune {
namespace {

// One FLOP of a matmul takes a second, all else takes no time.
double matmul_seconds(const gpu::Op& op) {
  return gpu::matmul_flops(op);
}

// Of the weights that tokens are multiplied with.
double matmul_parameters(const ModelConfig& c) {
  const double attention =
      static_cast<double>((2 * c.head_count + 2 * c.kv_head_count) * c.head_dim * c.hidden_size);
  const double mlp = static_cast<double>(3 * c.hidden_size * c.intermediate_size);
  return static_cast<double>(c.layer_count) * (attention + mlp) +
         static_cast<double>(c.vocab_size * c.hidden_size);
}

// Scores and values, of the causal half.
double attention_flops(const ModelConfig& c, double tokens) {
  return static_cast<double>(c.layer_count * c.head_count * c.head_dim) * 2 * tokens * (tokens + 1);
}

double predicted(const TrainerOptions& options, bool tied) {
  const Runtime runtime = make_runtime({.thread_count = 1});
  const Prediction found =
      predict_step(*runtime.device, test::tiny_config(tied), options, options.limits, matmul_seconds, {});
  EXPECT_DOUBLE_EQ(found.step_seconds, found.busy_seconds[Lane::compute]);
  return found.step_seconds;
}

// 2 FLOP a parameter and token forward and 4 backward; attention's backward makes five products of forward's
// two. Twice through the head adds a forward of it; recomputing, a forward of all layers.
TEST(WalkCosts, CountEveryMatmulOfAStep) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = test::tiny_config(tied);
    constexpr double kTokens = 64, kMicroBatches = 3;
    TrainerOptions options{.limits = {.micro_batch_count = 3, .tokens = 64, .rows = 1, .tokens_per_row = 64}};
    const double forward = 2 * matmul_parameters(config) * kTokens;
    const double attention = attention_flops(config, kTokens);
    EXPECT_DOUBLE_EQ(predicted(options, tied), kMicroBatches * (3 * forward + 3.5 * attention));
    options.recompute = Recompute::all;
    EXPECT_DOUBLE_EQ(predicted(options, tied), kMicroBatches * (4 * forward + 4.5 * attention));
  }
}

}  // namespace
}  // namespace sluice::finetune
