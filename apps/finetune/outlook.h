#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "apps/finetune/disk_use.h"
#include "apps/finetune/forecast.h"
#include "apps/finetune/options.h"
#include "apps/finetune/verdicts.h"
#include "gpu/timed/timed_device.h"

namespace sluice::finetune {

// The device that a plan is for: the CPU, or the GPU of --as beside it.
class PlanDevice {
 public:
  // Sets what follows from a GPU in setup.trainer: its memory as the limit, bf16, where nothing else was
  // asked for. Throws Error(usage) for an unknown GPU.
  PlanDevice(const PlanOptions& options, TrainSetup& setup);
  gpu::Device& device() const { return timed_ ? *timed_ : host_; }
  const std::optional<gpu::GpuModel>& gpu() const { return gpu_; }

 private:
  std::optional<gpu::GpuModel> gpu_;
  gpu::Device& host_;
  std::unique_ptr<gpu::TimedDevice> timed_;
};

// What a planned run would take in time, and whether it should be begun.
struct Outlook {
  Forecast forecast;
  DiskUse disk;
  std::vector<Verdict> verdicts;  // memory, disk space, endurance, time
};
Outlook look_ahead(const PlanOptions& options, const TrainSetup& setup, const PlanDevice& device,
                   const Plan& plan);

}  // namespace sluice::finetune
