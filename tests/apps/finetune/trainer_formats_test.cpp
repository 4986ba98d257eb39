// Every state format: the bits of a plain serial loop, wherever the states are, and from every generation on.
#include <cmath>
#include <gtest/gtest.h>

#include "tests/support/serial_trainer.h"
#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

using cpu_optim::AdamVariant;
using cpu_optim::StateFormat;
using finetune::Trainer;
using finetune::TrainerOptions;

TrialResult train_serially(const ModelConfig& config, std::span<const Window> windows,
                           const TrialOptions& options) {
  SerialTrainer trainer(config, trainer_options(limits_of(windows), options));
  fill_weights(trainer.store(), kWeightSeed);
  TrialResult result;
  for (const Window& window : windows) {
    const finetune::StepReport report = trainer.step(window, trial_learning_rate(result.losses.size()));
    result.losses.push_back(report.loss);
    result.gradient_norms.push_back(report.gradient_norm);
  }
  result.state_hash = trainer.store().hash();
  return result;
}

class TrainerFormats : public ::testing::TestWithParam<std::tuple<StateFormat, DType>> {
 protected:
  static TrialOptions options() {
    return {.compute_dtype = std::get<1>(GetParam()), .state_format = std::get<0>(GetParam())};
  }
  const ModelConfig config_ = tiny_config(std::get<1>(GetParam()) == DType::bf16);
};

TEST_P(TrainerFormats, SerialBitsWhereverTheStatesAre) {
  const std::vector<Window> windows = ragged_windows(1, config_.vocab_size, 4, 2);
  const TrialResult expected = train_serially(config_, windows, options());
  std::vector<TrialOptions> ways(5, options());
  ways[1].thread_count = 3;
  ways[1].prefetch_distance = 3;
  ways[1].delay_seed = 11;
  ways[2].disk = TrialDisk{.spill = Spill::moments};
  ways[3].disk = TrialDisk{.drive_count = 3};
  ways[4].thread_count = 2;
  ways[4].delay_seed = 5;
  ways[4].disk = TrialDisk{.queue = TrialQueue::memory, .seed = 3};
  for (size_t i = 0; i < ways.size(); ++i)
    EXPECT_EQ(train(config_, windows, ways[i]), expected) << "way " << i;
}

TEST_P(TrainerFormats, GoesOnFromAGeneration) {
  const std::vector<Window> windows = ragged_windows(6, config_.vocab_size, 4, 2);
  const TrialResult expected = train(config_, windows, options());
  for (const bool to_disk : {false, true}) {
    SCOPED_TRACE(to_disk ? "from RAM to disk" : "from disk to RAM");
    TrialStore store(config_, {});
    TrialResult found;
    for (const size_t begin : {size_t{0}, size_t{2}}) {
      TrialOptions how = options();
      how.thread_count = begin == 0 ? 1 : 2;
      if (to_disk == (begin > 0)) how.disk = TrialDisk{};
      const HostRuntime runtime = make_host_runtime(how);
      TrainerOptions given = trainer_options(limits_of(windows), how);
      begin == 0 ? store.create(given) : store.open(given);
      Trainer trainer(*runtime.device, *runtime.pool, config_, given);
      if (begin == 0) {
        fill_weights(trainer.engine().store(), kWeightSeed);
      } else {
        trainer.engine().restore();
      }
      for (size_t step = begin; step < begin + 2; ++step) {
        const finetune::StepReport report = trainer.step(windows[step], trial_learning_rate(step));
        found.losses.push_back(report.loss);
        found.gradient_norms.push_back(report.gradient_norm);
      }
      trainer.engine().save({.applied_step = 0, .run = {}}).wait();
      found.state_hash = trainer.engine().state_hash();
    }
    EXPECT_EQ(found, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainerFormats,
                         ::testing::Combine(::testing::ValuesIn(cpu_optim::kStateFormats),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& parameters) {
                           return std::string(cpu_optim::name(std::get<0>(parameters.param))) + "_" +
                                  std::string(name(std::get<1>(parameters.param)));
                         });

// All weights after a run, as the export would write them.
std::vector<float> masters_after(const ModelConfig& config, std::span<const Window> windows,
                                 const TrialOptions& how, std::vector<double>& losses) {
  const HostRuntime runtime = make_host_runtime(how);
  Trainer trainer(*runtime.device, *runtime.pool, config, trainer_options(limits_of(windows), how));
  fill_weights(trainer.engine().store(), kWeightSeed);
  losses = train(trainer, windows).losses;
  std::vector<float> all;
  const ModelSpec& model = trainer.engine().store().model();
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorSpec& spec = model.tensors[i];
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
    trainer.engine().store().read_rows(TensorId{static_cast<int32_t>(i)}, 0, spec.rows, values.data());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(TrainerFormat, PlansTheBytesOfTheFormat) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(3, config.vocab_size, 1, 2);
  for (const StateFormat format : cpu_optim::kStateFormats) {
    SCOPED_TRACE(cpu_optim::name(format));
    TrialOptions how{.state_format = format};
    const HostRuntime runtime = make_host_runtime(how);
    const TrainerOptions options = trainer_options(limits_of(windows), how);
    const ModelSpec model = finetune::make_decoder_spec(config, {}, format).model;
    const Plan in_ram = Trainer::plan(*runtime.device, config, options);
    EXPECT_EQ(in_ram.part(plan_part::kWeights).size_bytes, TensorStore::weight_arena_bytes(model));
    EXPECT_EQ(in_ram.part(plan_part::kMoments).size_bytes, TensorStore::moment_arena_bytes(model));
    how.disk = TrialDisk{};
    const Plan on_disk = Trainer::plan(*runtime.device, config, trainer_options(limits_of(windows), how));
    EXPECT_EQ(on_disk.update_slot_bytes, StateStream::slot_bytes(format));
    size_t written = 0;
    for (BlockId block{0}; block.value < static_cast<int>(model.blocks.size()); ++block.value) {
      const BlockLayout layout(model, block);
      written += layout.trained_bytes() + layout.moment_bytes();
      // In fp32.
      if (on_disk.home(block).gradient == Tier::disk)
        written += static_cast<size_t>(layout.logical_elements()) * 4;
    }
    EXPECT_EQ(on_disk.disk_write_bytes_per_walk, written);
  }
}

TEST(TrainerFormat, SplitHasTheBitsOfTheTextbook) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(2, config.vocab_size, 6, 2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TrialOptions how{.compute_dtype = dtype};
    std::vector<double> losses, textbook_losses;
    const std::vector<float> masters = masters_after(config, windows, how, losses);
    how.state_format = StateFormat::fp32;
    EXPECT_EQ(masters_after(config, windows, how, textbook_losses), masters) << name(dtype);
    EXPECT_EQ(textbook_losses, losses) << name(dtype);
  }
}

TEST(TrainerFormat, SmallerOnesStayNearby) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(2, config.vocab_size, 6, 2);
  std::vector<double> expected, losses;
  (void)masters_after(config, windows, {.compute_dtype = DType::bf16}, expected);
  for (const StateFormat format : {StateFormat::split_bf16, StateFormat::bf16, StateFormat::int8}) {
    (void)masters_after(config, windows, {.compute_dtype = DType::bf16, .state_format = format}, losses);
    EXPECT_EQ(losses[0], expected[0]) << "the first step has the same weights";
    EXPECT_NE(losses, expected);
    for (size_t step = 0; step < losses.size(); ++step)
      EXPECT_NEAR(losses[step], expected[step], 0.05 * std::abs(expected[step])) << cpu_optim::name(format);
  }
}

TEST(TrainerFormat, GradientsWaitInTheDtypeThatIsAskedFor) {
  const ModelConfig config = tiny_config(false);
  const std::vector<Window> windows = ragged_windows(3, config.vocab_size, 3, 2);
  for (const DType compute : {DType::f32, DType::bf16}) {
    std::vector<TrialResult> results;
    for (const DType gradient : {DType::f32, DType::bf16}) {
      TrialOptions how{.compute_dtype = compute, .gradient_dtype = gradient};
      results.push_back(train(config, windows, how));
      EXPECT_EQ(results.back(), train_serially(config, windows, how));
      if (gradient == compute) {
        how.gradient_dtype.reset();
        EXPECT_EQ(results.back(), train(config, windows, how)) << "the default";
      }
      how.disk = TrialDisk{};
      EXPECT_EQ(results.back(), train(config, windows, how));
    }
    EXPECT_NE(results[0].state_hash, results[1].state_hash);
  }
}

TEST(TrainerFormat, AdamDecaysWithTheGradient) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(3, config.vocab_size, 3, 2);
  const TrialOptions how{.variant = AdamVariant::adam};
  const TrialResult result = train(config, windows, how);
  EXPECT_EQ(result, train_serially(config, windows, how));
  EXPECT_NE(result.state_hash, train(config, windows, {}).state_hash);
}

}  // namespace
}  // namespace sluice::test
