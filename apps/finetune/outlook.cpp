#include "apps/finetune/outlook.h"

#include "apps/finetune/machine_memory.h"
#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/train_setup.h"
#include "engine/base/math.h"
#include "engine/schedule/plan_refusal.h"

namespace sluice::finetune {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// The least change that makes the run fit the machine's RAM; empty where none is known.
std::string memory_that_would_go(const TrainSetup& setup, const PlanDevice& device, const Plan& plan,
                                 size_t machine_bytes) {
  const bool device_is_ram = !device.gpu();
  TrainerOptions options = setup.trainer;
  const size_t device_bytes = device_is_ram ? plan.peak_bytes(Tier::device) : 0;
  if (machine_bytes > device_bytes) {
    options.disk = true;
    options.host_limit_bytes = machine_bytes - device_bytes;
    try {
      (void)Trainer::plan(device.device(), setup.model.config, options);
      return std::string(setup.trainer.disk ? "" : "--spill_dir DIR ") + "--host_memory " +
             std::to_string(*options.host_limit_bytes / kMiB) + "MiB";
    } catch (const PlanRefusal&) {
    }
  }
  return device_is_ram ? "a smaller --device_memory, --recompute all, or fewer or shorter rows" : "";
}

Verdict memory_verdict(const TrainSetup& setup, const PlanDevice& device, const Plan& plan) {
  MemoryFacts facts{.machine_bytes = machine_memory_bytes(),
                    .free_bytes = available_memory_bytes() + resident_bytes(),
                    .device_is_ram = !device.gpu()};
  Verdict verdict = judge_memory(plan, facts);
  if (!verdict.go) verdict.would_go = memory_that_would_go(setup, device, plan, facts.machine_bytes);
  return verdict;
}

// What only an interrupted run would need is told, and no verdict.
Verdict room_verdict(const TrainOptions& options, const DiskUse& use) {
  Verdict verdict = judge_room(room_wanted(options, use, options.state.resume));
  if (!verdict.go) return verdict;
  TrainOptions unlimited = options;  // endurance has a verdict of its own
  unlimited.state.ssd_write_limit.reset();
  if (const std::string doubt = check_disk(unlimited, use, options.state.resume); !doubt.empty())
    verdict.text += "; " + doubt;
  return verdict;
}

}  // namespace

PlanDevice::PlanDevice(const PlanOptions& options, TrainSetup& setup) : host_(*setup.runtime.device) {
  if (options.as.empty()) return;
  gpu_ = gpu::gpu_model(options.as);
  timed_ = gpu::make_timed_device(host_, {.model = *gpu_});
  TrainerOptions& trainer = setup.trainer;
  if (!options.train.engine.compute_dtype) trainer.compute_dtype = DType::bf16;
  if (!trainer.device_limit_bytes && gpu_->memory_bytes > 0) trainer.device_limit_bytes = gpu_->memory_bytes;
}

Outlook look_ahead(const PlanOptions& options, const TrainSetup& setup, const PlanDevice& device,
                   const Plan& plan) {
  const StateOptions& state = options.train.state;
  Outlook outlook{.disk = disk_use(options.train, setup, plan)};
  outlook.forecast =
      make_forecast(device.device(), setup,
                    {.gpu = device.gpu(), .spill_dirs = state.spill_dirs, .steps = outlook.disk.steps});
  outlook.verdicts = {
      memory_verdict(setup, device, plan), room_verdict(options.train, outlook.disk),
      judge_endurance(outlook.disk, state.ssd_write_limit, outlook.forecast.step.step_seconds),
      judge_time(outlook.forecast)};
  return outlook;
}

}  // namespace sluice::finetune
