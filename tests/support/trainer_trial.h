#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/finetune/trainer.h"
#include "gpu/host/host_device.h"
#include "tests/support/tiny_model.h"

// Runs of the trainer on tiny models: all that must not change a bit is an option.
namespace sluice::test {

struct TrialOptions {
  DType compute_dtype = DType::f32;
  int gradient_shards = 1;
  finetune::FreezeRule freeze = {};
  double max_gradient_norm = 1;
  // None of the following may change a number.
  int thread_count = 1;
  int prefetch_distance = 1;
  Recompute recompute = Recompute::automatic;
  std::optional<size_t> device_limit_bytes = {};
  std::optional<uint64_t> delay_seed = {};
  std::optional<uint64_t> step_seed = {};
};

finetune::TrainerOptions trainer_options(const finetune::BatchLimits& limits, const TrialOptions& options);

// A pool and the host device over it, whose hazard checker collects.
struct HostRuntime {
  std::unique_ptr<Executor> pool;
  std::unique_ptr<gpu::HostDevice> device;
};
HostRuntime make_host_runtime(const TrialOptions& options);

// The number in the error of a limit that is too small.
size_t least_device_bytes(const ModelConfig& config, const finetune::BatchLimits& limits,
                          const TrialOptions& options);

struct TrialResult {
  std::vector<double> losses;
  std::vector<double> gradient_norms;
  uint64_t state_hash = 0;
  bool operator==(const TrialResult&) const = default;
};

// Of the `step`-th window: falls from step to step, as with a schedule.
double trial_learning_rate(size_t step);

// Trains on the windows, the weights being set already. The losses must be finite.
TrialResult train(finetune::Trainer& trainer, std::span<const Window> windows);
// The same on a device and a trainer of its own with fill_weights(seed 7). Hazards fail the test, and so does
// device memory above the limit.
TrialResult train(const ModelConfig& config, std::span<const Window> windows, const TrialOptions& options);

inline constexpr uint64_t kWeightSeed = 7;

}  // namespace sluice::test
