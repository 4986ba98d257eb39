// The trainer under the hazard checker: clean as it is, and caught when one of its waits is missing.
#include <gtest/gtest.h>

#include "tests/support/forgetful_device.h"
#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

using finetune::Trainer;

class TrainerHazards : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  bool tied() const { return std::get<1>(GetParam()); }
};

// train() fails where the checker found anything.
TEST_P(TrainerHazards, AreNone) {
  const ModelConfig config = tiny_config(tied());
  const std::vector<Window> windows = ragged_windows(8, config.vocab_size, 3, 4);
  const TrialOptions base{.compute_dtype = dtype()};
  for (const int shards : {1, 4}) {
    for (const int distance : {0, 1, 3}) {
      for (const bool lean : {false, true}) {
        TrialOptions options = base;
        options.gradient_shards = shards;
        options.prefetch_distance = distance;
        options.delay_seed = static_cast<uint64_t>(distance + 10 * shards);
        if (lean) options.recompute = Recompute::all;
        if (lean && shards == 1)
          options.device_limit_bytes = least_device_bytes(config, limits_of(windows), options);
        (void)train(config, windows, options);
      }
    }
  }
  const ModelConfig pieces = two_piece_config(tied());
  (void)train(pieces, ragged_windows(9, pieces.vocab_size, 2, 2), base);
}

struct Scene {
  std::string name;
  ModelConfig config;
  Window window;  // of both steps, so that what a forgotten wait leaves stale is still in range
  TrialOptions options;
};

struct Forgotten {
  std::vector<WaitSite> waits;  // of that stream, in the second step
  size_t violation_count = 0;
};

// Two steps, the second with one wait forgotten.
Forgotten run_without(const Scene& scene, const std::string& stream, int index) {
  const HostRuntime runtime = make_host_runtime(scene.options);
  Forgotten result;
  {
    ForgetfulDevice device(*runtime.device);
    Trainer trainer(device, *runtime.pool, scene.config,
                    trainer_options(limits_of(std::span(&scene.window, 1)), scene.options));
    fill_weights(trainer.engine().store(), kWeightSeed);
    (void)trainer.step(scene.window, 1e-2);
    EXPECT_EQ(runtime.device->hazard_checker()->violation_count(), 0u);
    device.forget(stream, index);
    (void)trainer.step(scene.window, 1e-2);
    trainer.engine().wait();
    result.waits = device.waits(stream);
  }
  result.violation_count = runtime.device->hazard_checker()->violation_count();
  return result;
}

// Why the order is there without this wait; null: it is not.
const char* why_redundant(const WaitSite& site) {
  if (site.source == site.stream) return "a stream comes after itself (a slot leased on the same stream)";
  if (site.covered) return "the stream waits for this point of the source, or a later one, all the same";
  if (site.old && site.source != "optimizer")
    return "of the step before: the trainer has seen its norm, which comes after all gradients have arrived";
  if (site.stream == "copy out" && site.source == "optimizer")
    return "what leaves was made from weights that were copied in after this update";
  if (site.stream == "optimizer" && site.source == "compute")
    return "the last gradient has arrived, and left after this (only gradients from outside need it)";
  return nullptr;
}

enum class Harmless { tried, taken_on_trust };

// Every wait of the second step is either reported when it is missing or redundant.
void expect_caught(const Scene& scene, Harmless harmless) {
  SCOPED_TRACE(scene.name);
  for (const std::string stream : {"compute", "copy in", "copy out", "mover", "optimizer"}) {
    const Forgotten nothing = run_without(scene, stream, -1);
    EXPECT_EQ(nothing.violation_count, 0u);
    int needed_count = 0;
    for (size_t index = 0; index < nothing.waits.size(); ++index) {
      const WaitSite& site = nothing.waits[index];
      const char* reason = why_redundant(site);
      needed_count += reason == nullptr ? 1 : 0;
      if (reason != nullptr && harmless == Harmless::taken_on_trust) continue;
      const Forgotten result = run_without(scene, stream, static_cast<int>(index));
      EXPECT_EQ(result.violation_count > 0, reason == nullptr)
          << "wait " << index << ": " << site.text() << (reason != nullptr ? ": " : "")
          << (reason != nullptr ? reason : "");
    }
    EXPECT_GT(needed_count, 0) << stream;
  }
}

class ForgottenWaits : public TrainerHazards {
 protected:
  Scene scene(std::string name, const ModelConfig& config, TrialOptions options) const {
    options.compute_dtype = dtype();
    const std::vector<int64_t> first{17, 30}, second{9, 1, 40};
    return {std::move(name),
            config,
            {random_batch(1, config.vocab_size, first), random_batch(2, config.vocab_size, second)},
            options};
  }
};

// One task at a time, so that a missing wait is no data race.
TEST_P(ForgottenWaits, AreCaught) {
  for (const uint64_t seed : {1, 2}) {
    expect_caught(scene("steps " + std::to_string(seed), two_piece_config(tied()),
                        {.prefetch_distance = static_cast<int>(seed), .step_seed = seed}),
                  seed == 1 ? Harmless::tried : Harmless::taken_on_trust);
  }
}

TEST_P(ForgottenWaits, AreCaughtInLeastMemory) {
  ModelConfig config = tiny_config(tied());
  config.layer_count = 2;
  Scene lean = scene("least memory", config, {.step_seed = 3});
  lean.options.device_limit_bytes =
      least_device_bytes(config, limits_of(std::span(&lean.window, 1)), lean.options);
  expect_caught(lean, Harmless::tried);
}

TEST_P(ForgottenWaits, AreCaughtInShards) {
  ModelConfig config = tiny_config(tied());
  config.layer_count = 2;
  expect_caught(scene("shards", config, {.gradient_shards = 2, .prefetch_distance = 3, .step_seed = 4}),
                Harmless::taken_on_trust);
}

TEST_P(ForgottenWaits, AreCaughtWhateverTheTiming) {
  for (const uint64_t seed : {1, 2}) {
    expect_caught(scene("delays " + std::to_string(seed), two_piece_config(tied()),
                        {.thread_count = 2, .delay_seed = seed}),
                  Harmless::taken_on_trust);
  }
}

std::string parameter_name(const ::testing::TestParamInfo<std::tuple<DType, bool>>& info) {
  return std::string(name(std::get<0>(info.param))) + (std::get<1>(info.param) ? "_tied" : "_untied");
}

INSTANTIATE_TEST_SUITE_P(All, TrainerHazards,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16), ::testing::Bool()),
                         parameter_name);
INSTANTIATE_TEST_SUITE_P(All, ForgottenWaits,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16), ::testing::Bool()),
                         parameter_name);

}  // namespace
}  // namespace sluice::test
