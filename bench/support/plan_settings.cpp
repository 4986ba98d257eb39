#include "bench/support/plan_settings.h"

namespace sluice::bench {
namespace {

using cpu_optim::StateFormat;

const std::filesystem::path kDisk = "disk";

}  // namespace

TrialOptions PlanSetting::at(const std::filesystem::path& folder) const {
  TrialOptions options = trial;
  if (options.folder) options.folder = folder;
  return options;
}

std::vector<PlanSetting> plan_settings() {
  const gpu::GpuModel rtx_4090 = gpu::gpu_model("RTX 4090"), laptop = gpu::gpu_model("laptop RTX 4060"),
                      rtx_3060 = gpu::gpu_model("RTX 3060");
  return {
      {.name = "host_bf16_fast",
       .trial = {.workload = {.micro_batch_count = 1, .rows = 1, .row_tokens = 512}},
       .brief = true},
      {.name = "host_fp32_lean",
       .trial = {.dtype = DType::f32,
                 .workload = {.micro_batch_count = 2, .rows = 1, .row_tokens = 256},
                 .recompute = Recompute::all,
                 .prefetch_distance = 0}},
      {.name = "host_int8_short_rows",
       .trial = {.workload = {.micro_batch_count = 2, .rows = 4, .row_tokens = 128},
                 .state_format = StateFormat::int8}},
      {.name = "host_moments_on_disk",
       .trial = {.workload = {.micro_batch_count = 1, .rows = 1, .row_tokens = 512},
                 .folder = kDisk,
                 .spill = Spill::moments}},
      {.name = "host_all_on_disk",
       .trial = {.workload = {.micro_batch_count = 1, .rows = 1, .row_tokens = 512},
                 .folder = kDisk,
                 .layer_inputs = LayerInputs::disk}},
      {.name = "4090_fast",
       .trial = {.workload = {.micro_batch_count = 4, .rows = 8, .row_tokens = 512}, .gpu = rtx_4090},
       .step_count = 12,
       .brief = true},
      {.name = "4060_int8_long_rows",
       .trial = {.workload = {.micro_batch_count = 2, .rows = 2, .row_tokens = 2048},
                 .gpu = laptop,
                 .state_format = StateFormat::int8},
       .step_count = 6,
       .brief = true},
      {.name = "3060_bf16_moments_on_disk",
       .trial = {.workload = {.micro_batch_count = 8, .rows = 4, .row_tokens = 512},
                 .gpu = rtx_3060,
                 .folder = kDisk,
                 .spill = Spill::moments,
                 .recompute = Recompute::all,
                 .state_format = StateFormat::bf16}},
      {.name = "4090_all_on_disk",
       .trial = {.workload = {.micro_batch_count = 16, .rows = 8, .row_tokens = 512},
                 .gpu = rtx_4090,
                 .folder = kDisk}},
      {.name = "4060_inputs_on_disk",
       .trial = {.workload = {.micro_batch_count = 4, .rows = 8, .row_tokens = 512},
                 .gpu = laptop,
                 .folder = kDisk,
                 .layer_inputs = LayerInputs::disk},
       .brief = true},
  };
}

}  // namespace sluice::bench
