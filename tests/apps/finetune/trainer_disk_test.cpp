// Blocks on disk: the same bits as in RAM, and from every generation on.
#include <algorithm>
#include <gtest/gtest.h>

#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

using finetune::Trainer;
using finetune::TrainerOptions;

struct Way {
  std::string name;
  TrialOptions how;
};

std::vector<Way> ways_on_disk() {
  const auto disk = [](Spill spill) { return TrialDisk{.spill = spill}; };
  std::vector<Way> list{
      {"moments", {.disk = disk(Spill::moments)}},
      {"gradients", {.disk = disk(Spill::gradients)}},
      {"everything", {.disk = disk(Spill::everything)}},
      {"everything, io_uring", {.disk = TrialDisk{.queue = TrialQueue::io_uring}}},
      {"everything, three drives", {.disk = TrialDisk{.drive_count = 3}}},
      {"everything, threads 3, prefetch 3", {.thread_count = 3, .prefetch_distance = 3, .disk = TrialDisk{}}},
      {"everything, prefetch 0", {.prefetch_distance = 0, .disk = TrialDisk{}}},
      {"layer inputs in the host tier", {.layer_inputs = LayerInputs::host}},
      {"layer inputs in the host tier, recompute, prefetch 0",
       {.layer_inputs = LayerInputs::host, .prefetch_distance = 0, .recompute = Recompute::all}},
      {"layer inputs on disk, recompute",
       {.recompute = Recompute::all,
        .disk = TrialDisk{.spill = Spill::automatic, .layer_inputs = LayerInputs::disk}}},
      {"everything, recompute", {.recompute = Recompute::all, .disk = TrialDisk{}}},
  };
  for (const uint64_t seed : {1, 2, 3}) {
    const TrialDisk late{.layer_inputs = LayerInputs::disk, .queue = TrialQueue::memory, .seed = seed};
    list.push_back({"everything, late, delays " + std::to_string(seed),
                    {.thread_count = 2, .prefetch_distance = 2, .delay_seed = seed, .disk = late}});
    list.push_back({"everything, late, steps " + std::to_string(seed), {.step_seed = seed, .disk = late}});
  }
  return list;
}

class TrainerDisk : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  TrialOptions options() const { return {.compute_dtype = std::get<0>(GetParam())}; }
  bool tied() const { return std::get<1>(GetParam()); }
  void expect_same_bits(const ModelConfig& config, std::span<const Window> windows, TrialOptions base) const {
    const TrialResult expected = train(config, windows, base);
    for (const Way& way : ways_on_disk()) {
      SCOPED_TRACE(way.name);
      TrialOptions how = way.how;
      how.compute_dtype = base.compute_dtype;
      how.freeze = base.freeze;
      EXPECT_EQ(train(config, windows, how), expected);
    }
  }
};

TEST_P(TrainerDisk, SameBitsAsInRam) {
  ModelConfig config = tiny_config(tied());
  config.layer_count = 5;  // of whose inputs three leave the device
  expect_same_bits(config, ragged_windows(3, config.vocab_size, 4, 3), options());
}

TEST_P(TrainerDisk, SameBitsWithTwoPiecesAndFrozenTensors) {
  const ModelConfig config = two_piece_config(tied());
  TrialOptions base = options();
  base.freeze.tensor_names = {"model.layers.0.mlp.up_proj.weight", "model.norm.weight"};
  expect_same_bits(config, ragged_windows(5, config.vocab_size, 3, 2), base);
}

TEST(TrainerDiskPlan, HasWhatItIsAskedForOnDisk) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(3, config.vocab_size, 1, 2);
  for (const Spill spill : {Spill::automatic, Spill::moments, Spill::gradients, Spill::everything}) {
    const TrialOptions how{.disk = TrialDisk{.spill = spill}};
    const HostRuntime runtime = make_host_runtime(how);
    const Plan plan = Trainer::plan(*runtime.device, config, trainer_options(limits_of(windows), how));
    for (BlockId block{0}; block.value < static_cast<int>(plan.homes.size()); ++block.value) {
      const BlockHome& home = plan.home(block);
      EXPECT_EQ(home.moments == Tier::disk, spill >= Spill::moments);
      EXPECT_EQ(home.weights == Tier::disk, spill >= Spill::everything);
      EXPECT_TRUE(home.gradient == Tier::host || spill >= Spill::gradients);
    }
    const bool some =
        std::ranges::any_of(plan.homes, [](const BlockHome& home) { return home.gradient == Tier::disk; });
    EXPECT_EQ(some, spill >= Spill::gradients);
    EXPECT_EQ(plan.disk_write_bytes_per_walk > 0, spill >= Spill::moments);
    EXPECT_EQ(plan.part(plan_part::kStaging).size_bytes > 0, spill >= Spill::everything);
  }
}

// Its rows are gathered in the dtype that they are stored in.
TEST_P(TrainerDisk, SameBitsWithAFrozenEmbedding) {
  const ModelConfig config = tiny_config(tied());
  for (const DType storage : {DType::f32, DType::bf16}) {
    TrialOptions base = options();
    base.freeze = {.tensor_names = {"model.embed_tokens.weight"}, .frozen_dtype = storage};
    expect_same_bits(config, ragged_windows(7, config.vocab_size, 2, 2), base);
  }
}

// Three steps, a generation, and three more by another trainer in another way.
TEST_P(TrainerDisk, GoesOnFromAGeneration) {
  const ModelConfig config = tiny_config(tied());
  const std::vector<Window> windows = ragged_windows(6, config.vocab_size, 6, 2);
  const TrialResult expected = train(config, windows, options());
  const std::vector<std::optional<Spill>> places{{}, Spill::gradients, Spill::everything};
  for (const std::optional<Spill> before : places) {
    for (const std::optional<Spill> after : places) {
      SCOPED_TRACE(std::to_string(before ? static_cast<int>(*before) : -1) + " to " +
                   std::to_string(after ? static_cast<int>(*after) : -1));
      TrialStore store(config, {});
      TrialResult found;
      const auto run = [&](std::optional<Spill> spill, size_t begin, size_t end, int threads) {
        TrialOptions how = options();
        how.thread_count = threads;
        if (spill) how.disk = TrialDisk{.spill = *spill};
        const HostRuntime runtime = make_host_runtime(how);
        TrainerOptions given = trainer_options(limits_of(windows), how);
        begin == 0 ? store.create(given) : store.open(given);
        {
          Trainer trainer(*runtime.device, *runtime.pool, config, given);
          if (begin == 0) {
            fill_weights(trainer.engine().store(), kWeightSeed);
          } else {
            EXPECT_EQ(store.file().generation().facts.applied_step, static_cast<int64_t>(begin));
            EXPECT_EQ(store.file().generation().facts.run["step"], begin);
            trainer.engine().restore();
          }
          for (size_t step = begin; step < end; ++step) {
            const finetune::StepReport report = trainer.step(windows[step], trial_learning_rate(step));
            found.losses.push_back(report.loss);
            found.gradient_norms.push_back(report.gradient_norm);
            // Every step but some: generations follow one another, and steps write twice between two.
            if (step % 3 != 1) (void)trainer.engine().save({.applied_step = 0, .run = {{"step", step + 1}}});
          }
          found.state_hash = trainer.engine().state_hash();
        }
        EXPECT_EQ(runtime.device->hazard_checker()->violation_count(), 0u);
      };
      run(before, 0, 3, 1);
      run(after, 3, 6, 2);
      EXPECT_EQ(found, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainerDisk,
                         ::testing::Values(std::tuple{DType::f32, false}, std::tuple{DType::bf16, true}),
                         [](const auto& param) {
                           return std::string(std::get<0>(param.param) == DType::f32 ? "fp32" : "bf16") +
                                  (std::get<1>(param.param) ? "_tied" : "_untied");
                         });

}  // namespace
}  // namespace sluice::test
