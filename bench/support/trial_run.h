#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "apps/finetune/runtime.h"
#include "apps/finetune/trainer.h"
#include "bench/support/train_workload.h"
#include "gpu/timed/timed_device.h"

namespace sluice::bench {

// A folder of our own beside the others on the drive, gone at the end.
class BenchFolder {
 public:
  explicit BenchFolder(const std::filesystem::path& parent);
  BenchFolder(const BenchFolder&) = delete;
  BenchFolder& operator=(const BenchFolder&) = delete;
  ~BenchFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct TrialOptions {
  DType dtype = DType::bf16;
  Workload workload;
  int64_t layers = 30;  // of SmolLM2-135M's shape
  int64_t vocab_size = 49152;
  std::optional<gpu::GpuModel> gpu = {};             // numerics off; else the host device
  std::optional<std::filesystem::path> folder = {};  // what `spill` says is on disk, below it; else in RAM
  Spill spill = Spill::everything;
  LayerInputs layer_inputs = LayerInputs::automatic;
  Recompute recompute = Recompute::automatic;
  int prefetch_distance = 1;
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;
  std::vector<PlanPart> host_parts = {};  // what the process holds besides
  double max_gradient_norm = 1;
};

ModelConfig model_config(const TrialOptions& options);
// What a trainer is made with for it, but for the state file.
finetune::TrainerOptions trainer_options(const TrialOptions& options);

// Whether a step's update runs under the next forward pass, as always, or alone, before it.
enum class UpdateRun { overlapped, alone };

// Steps on scattered tokens, timed.
class TrialRun {
 public:
  explicit TrialRun(const TrialOptions& options);
  ~TrialRun();

  finetune::Trainer& trainer() { return *trainer_; }
  gpu::Device& device() { return timed_ ? static_cast<gpu::Device&>(*timed_) : *runtime_.device; }
  const gpu::TimedDevice* timed_device() const { return timed_.get(); }
  Executor& pool() { return *runtime_.pool; }

  struct Step {
    double loss = 0;
    double forward_seconds = 0;  // until the layers' forward pass has ended
    double update_seconds = 0;   // of an update that ran alone
    double seconds = 0;          // of all
  };
  Step step(UpdateRun update = UpdateRun::overlapped);

  struct Medians {
    std::vector<double> losses;  // of all steps
    double seconds = 0;
    double least_seconds = 0;
    double forward_seconds = 0;
    double update_seconds = 0;
  };
  // One untimed step and so many timed ones, each with the update of the step before.
  Medians steps(int timed_count, UpdateRun update = UpdateRun::overlapped);

 private:
  finetune::Runtime runtime_;
  std::optional<BenchFolder> folder_;
  FolderLocks locks_;
  std::unique_ptr<StateFile> file_;
  std::unique_ptr<gpu::TimedDevice> timed_;
  std::unique_ptr<finetune::Trainer> trainer_;
  std::vector<finetune::MicroBatch> batches_;
};

}  // namespace sluice::bench
