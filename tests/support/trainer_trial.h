#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/finetune/trainer.h"
#include "gpu/host/host_device.h"
#include "io/memory_queue.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

// Runs of the trainer on tiny models: all that must not change a bit is an option.
namespace sluice::test {

enum class TrialQueue { threads, io_uring, memory };

// Where a trial's state is on disk.
struct TrialDisk {
  Spill spill = Spill::everything;
  LayerInputs layer_inputs = LayerInputs::automatic;
  int drive_count = 1;
  TrialQueue queue = TrialQueue::threads;
  uint64_t seed = 0;  // of the memory queue's order and delays
};

struct TrialOptions {
  DType compute_dtype = DType::f32;
  int gradient_shards = 1;
  finetune::FreezeRule freeze = {};
  double max_gradient_norm = 1;
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;
  std::optional<DType> gradient_dtype = {};
  cpu_optim::AdamVariant variant = cpu_optim::AdamVariant::adamw;
  // None of the following may change a number.
  LayerInputs layer_inputs = LayerInputs::automatic;
  int thread_count = 1;
  int prefetch_distance = 1;
  Recompute recompute = Recompute::automatic;
  std::optional<size_t> device_limit_bytes = {};
  std::optional<uint64_t> delay_seed = {};
  std::optional<uint64_t> step_seed = {};
  std::optional<TrialDisk> disk = {};
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

// The folders, locks and queues of a state on disk, which outlive the trainers that use it one after another.
class TrialStore {
 public:
  TrialStore(const ModelConfig& config, const TrialDisk& disk);

  // A new state file, or the one that is there, put into the options. The file of the last call is closed.
  void create(finetune::TrainerOptions& options);
  void open(finetune::TrainerOptions& options);
  StateFile& file() { return *file_; }

 private:
  void give(finetune::TrainerOptions& options);
  IoQueueFactory queues() const;
  StateLayout layout(const finetune::TrainerOptions& options) const;

  const ModelConfig config_;
  const TrialDisk disk_;
  TemporaryFolder folder_;
  std::shared_ptr<MemoryDisk> memory_;
  std::unique_ptr<FolderLocks> locks_ = std::make_unique<FolderLocks>();
  std::unique_ptr<StateFile> file_;
};

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
