// The trainer against a plain serial loop: the same bits.
#include <gtest/gtest.h>

#include "tests/support/serial_trainer.h"
#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

TrialResult train_serially(const ModelConfig& config, std::span<const Window> windows,
                           const TrialOptions& options) {
  SerialTrainer trainer(config, trainer_options(limits_of(windows), options));
  fill_weights(trainer.store(), kWeightSeed);
  TrialResult result;
  for (const Window& window : windows) {
    const finetune::StepReport report = trainer.step(window, trial_learning_rate(result.losses.size()));
    EXPECT_FALSE(report.skipped);
    result.losses.push_back(report.loss);
    result.gradient_norms.push_back(report.gradient_norm);
  }
  result.state_hash = trainer.store().hash();
  return result;
}

void expect_serial_bits(const ModelConfig& config, std::span<const Window> windows,
                        const TrialOptions& options) {
  const TrialResult expected = train_serially(config, windows, options);
  TrialOptions lean = options;  // and once as differently as it gets
  lean.thread_count = 3;
  lean.prefetch_distance = 3;
  lean.delay_seed = 11;
  lean.device_limit_bytes = least_device_bytes(config, limits_of(windows), lean);
  for (const TrialOptions& how : {options, lean}) {
    const TrialResult result = train(config, windows, how);
    EXPECT_EQ(result.losses, expected.losses);
    EXPECT_EQ(result.gradient_norms, expected.gradient_norms);
    EXPECT_EQ(result.state_hash, expected.state_hash);
  }
}

class TrainerSerial : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  bool tied() const { return std::get<1>(GetParam()); }
};

TEST_P(TrainerSerial, FiveSteps) {
  const ModelConfig config = tiny_config(tied());
  expect_serial_bits(config, ragged_windows(1, config.vocab_size, 5, 3), {.compute_dtype = dtype()});
}

TEST_P(TrainerSerial, TwoPiecesOfVocabulary) {
  const ModelConfig config = two_piece_config(tied());
  expect_serial_bits(config, ragged_windows(2, config.vocab_size, 3, 2), {.compute_dtype = dtype()});
}

// The last window has three micro-batches for four shards: one stays empty.
TEST_P(TrainerSerial, ShardsOneAfterAnotherOrInterleaved) {
  const ModelConfig config = tiny_config(tied());
  const std::vector<Window> windows = ragged_windows(3, config.vocab_size, 4, 4);
  expect_serial_bits(config, windows, {.compute_dtype = dtype(), .gradient_shards = 4});
  EXPECT_NE(train(config, windows, {.compute_dtype = dtype(), .gradient_shards = 4}).state_hash,
            train(config, windows, {.compute_dtype = dtype()}).state_hash)
      << "the order of the sums should show";
}

TEST_P(TrainerSerial, FrozenTensors) {
  const ModelConfig config = tiny_config(tied());
  finetune::FreezeRule freeze{
      .tensor_names = {"model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight",
                       "model.layers.1.post_attention_layernorm.weight",
                       "model.layers.2.mlp.gate_proj.weight"},
      .frozen_dtype = DType::f32};
  const std::vector<Window> windows = ragged_windows(4, config.vocab_size, 3, 2);
  for (const DType storage : {DType::f32, DType::bf16}) {
    freeze.frozen_dtype = storage;
    expect_serial_bits(config, windows, {.compute_dtype = dtype(), .freeze = freeze});
  }
}

// More tokens than the head takes in one go, and several chunks of the norm.
TEST_P(TrainerSerial, WideMicroBatch) {
  const ModelConfig config = tiny_config(tied());
  const std::vector<int64_t> lengths{300, 1, 290, 64};
  const std::vector<Window> windows{{random_batch(5, config.vocab_size, lengths)},
                                    {random_batch(6, config.vocab_size, lengths)}};
  expect_serial_bits(config, windows, {.compute_dtype = dtype(), .max_gradient_norm = 0});
}

INSTANTIATE_TEST_SUITE_P(All, TrainerSerial,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16), ::testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(name(std::get<0>(parameters.param))) +
                                  (std::get<1>(parameters.param) ? "_tied" : "_untied");
                         });

}  // namespace
}  // namespace sluice::test
