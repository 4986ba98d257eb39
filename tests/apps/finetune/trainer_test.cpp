#include "apps/finetune/trainer.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

using finetune::MicroBatch;
using finetune::StepReport;
using finetune::Trainer;

enum class Limit {
  none,
  least,   // that the other options allow
  partly,  // so that some layers, but not all, are recomputed
};

// A way of running that must not show in the numbers.
struct Way {
  std::string name;
  TrialOptions how;
  Limit limit = Limit::none;
};

std::vector<Way> ways() {
  std::vector<Way> list{
      {"recompute none", {.recompute = Recompute::none}},
      {"recompute all", {.recompute = Recompute::all}},
      {"recompute partly", {}, Limit::partly},
      {"least memory", {}, Limit::least},
      {"least memory, 3 ahead wanted", {.prefetch_distance = 3}, Limit::least},
      {"least memory without recomputing", {.recompute = Recompute::none}, Limit::least},
      {"threads 2", {.thread_count = 2}},
      {"threads 3", {.thread_count = 3}},
      {"prefetch 0", {.prefetch_distance = 0}},
      {"prefetch 3", {.prefetch_distance = 3}},
      {"least memory, delays", {.thread_count = 2, .delay_seed = 4}, Limit::least},
      {"recompute partly, steps", {.prefetch_distance = 0, .step_seed = 5}, Limit::partly},
  };
  for (const uint64_t seed : {1, 2, 3}) {
    const int distance = static_cast<int>(seed);
    list.push_back({"delays " + std::to_string(seed),
                    {.thread_count = 2, .prefetch_distance = distance, .delay_seed = seed}});
    list.push_back({"steps " + std::to_string(seed), {.prefetch_distance = distance, .step_seed = seed}});
  }
  return list;
}

Plan plan_of(const ModelConfig& config, std::span<const Window> windows, const TrialOptions& options) {
  const HostRuntime runtime = make_host_runtime(options);
  return Trainer::plan(*runtime.device, config, trainer_options(limits_of(windows), options));
}

// The largest limit under which a layer is recomputed.
size_t bytes_for_partly(const ModelConfig& config, std::span<const Window> windows, TrialOptions options) {
  for (;;) {
    const Plan plan = plan_of(config, windows, options);
    const size_t peak = plan.peak_bytes(Tier::device);
    if (plan.recomputed_count() > 0) {
      EXPECT_LT(plan.recomputed_count(), config.layer_count);
      return peak;
    }
    options.device_limit_bytes = peak - 1;
  }
}

void expect_same_bits(const ModelConfig& config, std::span<const Window> windows,
                      const TrialOptions& options) {
  const TrialResult expected = train(config, windows, options);
  ASSERT_EQ(expected.losses.size(), windows.size());
  EXPECT_LT(expected.losses.back(), 1.2 * expected.losses.front()) << "this should be training";
  for (const Way& way : ways()) {
    if (way.limit == Limit::partly && config.layer_count == 1) continue;
    SCOPED_TRACE(way.name);
    TrialOptions other = way.how;
    other.compute_dtype = options.compute_dtype;
    other.gradient_shards = options.gradient_shards;
    if (way.limit == Limit::least)
      other.device_limit_bytes = least_device_bytes(config, limits_of(windows), other);
    if (way.limit == Limit::partly) other.device_limit_bytes = bytes_for_partly(config, windows, other);
    const TrialResult result = train(config, windows, other);
    EXPECT_EQ(result.losses, expected.losses);
    EXPECT_EQ(result.gradient_norms, expected.gradient_norms);
    EXPECT_EQ(result.state_hash, expected.state_hash);
    if (::testing::Test::HasFailure()) return;
  }
}

class TrainerBits : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  bool tied() const { return std::get<1>(GetParam()); }
};

TEST_P(TrainerBits, DoNotDependOnHowItRuns) {
  const ModelConfig config = tiny_config(tied());
  expect_same_bits(config, ragged_windows(1, config.vocab_size, 5, 3), {.compute_dtype = dtype()});
}

TEST_P(TrainerBits, DoNotDependOnHowItRunsInShards) {
  const ModelConfig config = tiny_config(tied());
  expect_same_bits(config, ragged_windows(3, config.vocab_size, 2, 4),
                   {.compute_dtype = dtype(), .gradient_shards = 4});
}

TEST_P(TrainerBits, DoNotDependOnHowItRunsWithTwoPieces) {
  const ModelConfig config = two_piece_config(tied());
  expect_same_bits(config, ragged_windows(2, config.vocab_size, 2, 2), {.compute_dtype = dtype()});
}

INSTANTIATE_TEST_SUITE_P(All, TrainerBits,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16), ::testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(name(std::get<0>(parameters.param))) +
                                  (std::get<1>(parameters.param) ? "_tied" : "_untied");
                         });

// The hash must be able to tell runs apart.
TEST(Trainer, OtherDataGivesOtherBits) {
  const ModelConfig config = tiny_config(false);
  std::vector<Window> windows = ragged_windows(1, config.vocab_size, 2, 2);
  const TrialResult one = train(config, windows, {});
  windows[1][0].weights[0] *= 2;
  windows[1][0].targets[0] = 1;
  windows[1][0].weights[0] = 1;
  EXPECT_NE(train(config, windows, {}).state_hash, one.state_hash);
}

// A trainer with weights, ready to step.
struct Bench {
  explicit Bench(const ModelConfig& config, std::span<const Window> windows, const TrialOptions& options = {},
                 WeightBits bits = WeightBits::bf16)
      : runtime(make_host_runtime(options)),
        trainer(*runtime.device, *runtime.pool, config, trainer_options(limits_of(windows), options)) {
    fill_weights(store(), kWeightSeed, bits);
  }
  TensorStore& store() { return trainer.engine().store(); }
  TensorId tensor(const std::string& name) {
    for (size_t i = 0; i < store().model().tensors.size(); ++i) {
      if (store().model().tensors[i].name == name) return TensorId{static_cast<int32_t>(i)};
    }
    ADD_FAILURE() << name;
    return {};
  }
  std::vector<float> read(TensorId id) {
    const TensorSpec& spec = store().model().tensor(id);
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
    store().read_rows(id, 0, spec.rows, values.data());
    return values;
  }
  std::vector<float> gradient(TensorId id) {
    const TensorSpec& spec = store().model().tensor(id);
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
    trainer.engine().read_gradient(id, 0, spec.rows, values.data());
    return values;
  }
  void fill(const std::string& name, const std::function<float(size_t)>& value) {
    const TensorSpec& spec = store().model().tensor(tensor(name));
    std::vector<float> values(static_cast<size_t>(spec.rows * spec.cols));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    store().write_rows(tensor(name), 0, spec.rows, values.data());
  }

  HostRuntime runtime;
  Trainer trainer;
};

// (compute dtype, storage of what is frozen, tied)
class TrainerFreeze : public ::testing::TestWithParam<std::tuple<DType, DType, bool>> {
 protected:
  TrialOptions options(std::vector<std::string> names) const {
    return {.compute_dtype = std::get<0>(GetParam()),
            .freeze = {.tensor_names = std::move(names), .frozen_dtype = std::get<1>(GetParam())}};
  }
  ModelConfig config() const { return tiny_config(std::get<2>(GetParam())); }
};

TEST_P(TrainerFreeze, HasNoStateAndNoGradientAndKeepsItsBytes) {
  const std::vector<Window> windows = ragged_windows(4, config().vocab_size, 3, 2);
  std::vector<std::string> names{"model.embed_tokens.weight", "model.norm.weight"};
  Bench whole(config(), windows, options({}));
  for (const TensorSpec& spec : whole.store().model().tensors) {  // a layer, and parts of stacked weights
    if (spec.name.find("layers.1.") != std::string::npos || spec.name.find("k_proj") != std::string::npos ||
        spec.name.find("up_proj") != std::string::npos || spec.name.find("0.input") != std::string::npos)
      names.push_back(spec.name);
  }
  Bench frozen(config(), windows, options(names));
  const ModelSpec& model = frozen.store().model();
  size_t moment_bytes = 0;
  for (int block = 0; block < frozen.store().block_count(); ++block)
    moment_bytes += frozen.store().state(BlockId{block}).first_moment.size_bytes() * 2;
  EXPECT_LT(frozen.trainer.engine().plan().part("moments").size_bytes,
            whole.trainer.engine().plan().part("moments").size_bytes);
  EXPECT_GE(frozen.trainer.engine().plan().part("moments").size_bytes, moment_bytes);
  EXPECT_LT(frozen.trainer.engine().plan().copy_out_bytes_per_walk,
            whole.trainer.engine().plan().copy_out_bytes_per_walk);

  std::vector<std::vector<float>> before;
  for (size_t i = 0; i < model.tensors.size(); ++i)
    before.push_back(frozen.read(TensorId{static_cast<int32_t>(i)}));
  EXPECT_EQ(frozen.trainer.step(windows[0], 1e-2).loss, whole.trainer.step(windows[0], 1e-2).loss);
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorId id{static_cast<int32_t>(i)};
    if (!model.tensor(id).trainable) continue;
    EXPECT_EQ(frozen.gradient(id), whole.gradient(id)) << model.tensor(id).name;
  }
  for (const Window& window : {windows[1], windows[2]}) (void)frozen.trainer.step(window, 1e-2);
  frozen.trainer.engine().wait();
  size_t frozen_count = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorId id{static_cast<int32_t>(i)};
    const bool same = frozen.read(id) == before[i];
    EXPECT_EQ(same, !model.tensor(id).trainable) << model.tensor(id).name;
    frozen_count += model.tensor(id).trainable ? 0 : 1;
  }
  EXPECT_EQ(frozen_count, names.size());
  EXPECT_EQ(frozen.runtime.device->hazard_checker()->violation_count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, TrainerFreeze,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(DType::f32, DType::bf16), ::testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(name(std::get<0>(parameters.param))) + "_of_" +
                                  std::string(name(std::get<1>(parameters.param))) +
                                  (std::get<2>(parameters.param) ? "_tied" : "_untied");
                         });

class TrainerFaults : public ::testing::TestWithParam<DType> {};

// Only one row of the window holds the token whose embedding is not a number.
TEST_P(TrainerFaults, NamesTheRowWhoseLossIsNotANumber) {
  const ModelConfig config = tiny_config(false);
  std::vector<Window> windows = ragged_windows(5, config.vocab_size, 2, 3);
  constexpr int32_t kToken = 77;
  for (Window& window : windows) {
    for (MicroBatch& batch : window) std::ranges::replace(batch.tokens, kToken, 78);
  }
  MicroBatch& batch = windows[1][1];
  const size_t row = batch.row_sources.size() - 1;
  const size_t at = static_cast<size_t>(batch.document_offsets[row]) + 1;
  batch.tokens[at] = kToken;
  batch.targets[at + 1] = batch.tokens[at + 2];
  batch.weights[at + 1] = 1;
  batch.row_sources[row] = "poisoned.jsonl:42";

  Bench bench(config, windows, {.compute_dtype = GetParam()});
  std::vector<float> nan(static_cast<size_t>(config.hidden_size), std::numeric_limits<float>::quiet_NaN());
  bench.store().write_rows(bench.tensor("model.embed_tokens.weight"), kToken, 1, nan.data());
  const StepReport first = bench.trainer.step(windows[0], 1e-2);
  EXPECT_EQ(first.bad_row, "");
  EXPECT_FALSE(first.skipped);
  const uint64_t hash = bench.trainer.engine().state_hash();
  const int64_t applied = bench.trainer.engine().applied_steps();
  const StepReport second = bench.trainer.step(windows[1], 1e-2);
  EXPECT_EQ(second.bad_row, "poisoned.jsonl:42");
  EXPECT_EQ(bench.trainer.engine().state_hash(), hash);
  EXPECT_EQ(bench.trainer.engine().applied_steps(), applied);
  EXPECT_EQ(bench.runtime.device->hazard_checker()->violation_count(), 0u);
}

// Rows of +-3e38 under a norm weight of 1e-36 make logits of a few hundreds and gradients beyond fp32.
TEST_P(TrainerFaults, SkipsAStepWhoseNormIsNotFinite) {
  const ModelConfig config = tiny_config(false);
  std::vector<Window> windows = ragged_windows(6, config.vocab_size, 3, 2);
  std::ranges::fill(windows[1][0].weights, 0.0f);
  std::ranges::fill(windows[1][0].targets, -1);
  windows[1].resize(1);
  windows[1][0].targets[0] = 5;
  windows[1][0].weights[0] = 1;
  const TrialOptions options{.compute_dtype = GetParam()};
  const auto write_head = [&](Bench& bench, bool huge) {
    bench.trainer.engine().wait();
    bench.fill("lm_head.weight", [&](size_t i) {
      const float unit = counter_uniform(9, i);
      return huge ? std::copysign(2.5e38f, unit) : unit / 8;
    });
    bench.fill("model.norm.weight", [&](size_t) { return huge ? 1e-36f : 1.0f; });
  };
  Bench faulty(config, windows, options);
  Bench sound(config, windows, options);
  EXPECT_EQ(faulty.trainer.step(windows[0], 1e-2).loss, sound.trainer.step(windows[0], 1e-2).loss);
  write_head(faulty, true);
  const uint64_t before = faulty.trainer.engine().state_hash();
  const StepReport report = faulty.trainer.step(windows[1], 1e-2);
  EXPECT_EQ(report.bad_row, "");
  EXPECT_TRUE(std::isfinite(report.loss)) << report.loss;
  EXPECT_FALSE(std::isfinite(report.gradient_norm)) << report.gradient_norm;
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(faulty.trainer.engine().state_hash(), before);
  EXPECT_EQ(faulty.trainer.engine().applied_steps(), 1);

  // As if the step had never been.
  write_head(faulty, false);
  write_head(sound, false);
  const StepReport again = faulty.trainer.step(windows[2], 1e-2);
  EXPECT_FALSE(again.skipped);
  EXPECT_EQ(again.loss, sound.trainer.step(windows[2], 1e-2).loss);
  EXPECT_EQ(faulty.trainer.engine().state_hash(), sound.trainer.engine().state_hash());
  EXPECT_EQ(faulty.runtime.device->hazard_checker()->violation_count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, TrainerFaults, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& parameters) { return std::string(name(parameters.param)); });

class TrainerMemory : public ::testing::TestWithParam<DType> {};

TEST_P(TrainerMemory, KeepsTheLimitAndNamesTheLeast) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(7, config.vocab_size, 2, 3);
  for (const Recompute recompute : {Recompute::automatic, Recompute::none, Recompute::all}) {
    TrialOptions options{.compute_dtype = GetParam(), .recompute = recompute};
    const size_t free_peak = plan_of(config, windows, options).peak_bytes(Tier::device);
    const size_t least = least_device_bytes(config, limits_of(windows), options);
    EXPECT_LE(least, free_peak);
    options.device_limit_bytes = least - 1;
    expect_error(ErrorKind::resource, {std::to_string(least) + " bytes", "--device_memory"},
                 [&] { (void)train(config, windows, options); });
    for (const size_t limit : {least, (least + free_peak) / 2, free_peak}) {
      options.device_limit_bytes = limit;
      const HostRuntime runtime = make_host_runtime(options);
      {
        Trainer trainer(*runtime.device, *runtime.pool, config, trainer_options(limits_of(windows), options));
        EXPECT_LE(trainer.engine().plan().peak_bytes(Tier::device), limit);
        EXPECT_EQ(runtime.device->used_bytes(), trainer.engine().plan().peak_bytes(Tier::device));
        fill_weights(trainer.engine().store(), kWeightSeed);
        (void)train(trainer, windows);
        EXPECT_LE(runtime.device->used_bytes(), limit);
      }
      EXPECT_EQ(runtime.device->used_bytes(), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainerMemory, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& parameters) { return std::string(name(parameters.param)); });

}  // namespace
}  // namespace sluice::test
