// Predicted against measured: the seconds of a training step as `finetune plan` foretells them, from the
// plan, the cost of its ops and the rates of drive and optimizer, against a run of the same step.
// SmolLM2-135M's shape; on the host device, and on modelled GPUs without numerics; everything in RAM, and
// everything on disk.
//
//   bench_prediction [--folder DIR]
//
// Prints `ratio predicted_vs_measured_NAME V` for each: below 1, the step was slower than foretold. Before
// that it checks that states on disk give the losses of those in RAM, and that the engine copied exactly the
// bytes that were foretold. Rates are measured in the same run, on the same machine: what else runs there
// counts in both.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/machine_rates.h"
#include "apps/finetune/runtime.h"
#include "apps/finetune/walk_costs.h"
#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/options.h"
#include "bench/support/program.h"
#include "bench/support/trial_run.h"
#include "engine/base/error.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using finetune::MachineRates;
using finetune::TrainerOptions;

constexpr int kTimedSteps = 3;
constexpr int64_t kLayers = 30;

struct Case {
  std::string name;
  std::optional<gpu::GpuModel> gpu;
  Workload workload;
};

std::vector<Case> cases() {
  return {{"host", {}, {.micro_batch_count = 1, .rows = 1, .row_tokens = 512}},
          {"rtx_4090", gpu::gpu_model("RTX 4090"), {.micro_batch_count = 4, .rows = 8, .row_tokens = 512}},
          {"laptop_rtx_4060",
           gpu::gpu_model("laptop RTX 4060"),
           {.micro_batch_count = 4, .rows = 8, .row_tokens = 512}}};
}

LaneRates measure_drive(const fs::path& folder) {
  const std::vector<std::string> arguments{"--quick", "--save=false", "--folder", folder.string()};
  const auto options = std::get<nvme_bench::Options>(nvme_bench::parse_options(arguments));
  const nvme_bench::DriveResult found = nvme_bench::bench_drive(options, folder.string(), {});
  const auto rate = [&](nvme_bench::Traffic traffic) {
    return found.measurements.at(traffic).bytes_per_second();
  };
  const double cpu_seconds = found.measurements.at(nvme_bench::Traffic::mixed).cpu_seconds_per_gb();
  const LaneRates rates{.disk_read_bytes_per_second = rate(nvme_bench::Traffic::read),
                        .disk_write_bytes_per_second = rate(nvme_bench::Traffic::write),
                        .disk_mixed_bytes_per_second = rate(nvme_bench::Traffic::mixed),
                        .disk_cpu_seconds_per_byte = cpu_seconds * 1e-9};
  std::printf("drive: read %.2f, write %.2f, mixed %.2f GB/s; %.2f CPU s/GB\n",
              rates.disk_read_bytes_per_second * 1e-9, rates.disk_write_bytes_per_second * 1e-9,
              rates.disk_mixed_bytes_per_second * 1e-9, cpu_seconds);
  return rates;
}

struct Measured : TrialRun::Medians {
  Engine::Counters copied;  // of one step
};

Measured train(TrialRun& run) {
  const Engine& engine = run.trainer().engine();
  Measured measured{run.steps(kTimedSteps), {}};
  const Engine::Counters before = engine.counters();
  measured.losses.push_back(run.step().loss);
  const Engine::Counters after = engine.counters();
  measured.copied.copied_in_bytes = after.copied_in_bytes - before.copied_in_bytes;
  measured.copied.copied_out_bytes = after.copied_out_bytes - before.copied_out_bytes;
  return measured;
}

struct Rates {
  MachineRates machine;
  LaneRates drive;
};

Prediction predict(gpu::Device& device, const Case& which, const TrainerOptions& options, const Rates& rates,
                   int thread_count) {
  LaneRates lanes =
      finetune::host_lane_rates(rates.machine, thread_count, which.gpu ? Processors::apart : Processors::one);
  lanes.disk_read_bytes_per_second = rates.drive.disk_read_bytes_per_second;
  lanes.disk_write_bytes_per_second = rates.drive.disk_write_bytes_per_second;
  lanes.disk_mixed_bytes_per_second = rates.drive.disk_mixed_bytes_per_second;
  lanes.disk_cpu_seconds_per_byte = rates.drive.disk_cpu_seconds_per_byte;
  if (which.gpu) {
    lanes.copy_in_bytes_per_second = which.gpu->copy_in_bytes_per_second;
    lanes.copy_out_bytes_per_second = which.gpu->copy_out_bytes_per_second;
  }
  const finetune::OpSeconds seconds = [&](const gpu::Op& op) {
    return which.gpu ? gpu::op_seconds(*which.gpu, gpu::cost(op)) : finetune::op_seconds(rates.machine, op);
  };
  return finetune::predict_step(device, smollm2(kLayers), options, options.limits, seconds, lanes);
}

void print(const Case& which, bool on_disk, const Prediction& predicted, const Measured& measured) {
  std::printf("%s, %s: %lld tokens, predicted %.3f s (", which.name.c_str(), on_disk ? "on disk" : "in RAM",
              static_cast<long long>(which.workload.tokens()), predicted.step_seconds);
  for (size_t lane = 0; lane < kLaneCount; ++lane)
    std::printf("%s %.3f, ", std::string(name(static_cast<Lane>(lane))).c_str(),
                predicted.busy_seconds.values[lane]);
  std::printf("bottleneck %s), measured %.3f s\n", std::string(predicted.bottleneck).c_str(),
              measured.seconds);
  std::printf("ratio predicted_vs_measured_%s_%s %.3f\n", which.name.c_str(), on_disk ? "disk" : "ram",
              predicted.step_seconds / measured.seconds);
}

// The engine's counters see weights and gradients; a prediction counts a step's inputs and rows as well.
void check_bytes(const Prediction& predicted, const Plan& plan, const Measured& measured) {
  const double inputs = predicted.bytes[Lane::copy_in] - static_cast<double>(plan.copy_in_bytes_per_walk);
  const double rows = predicted.bytes[Lane::copy_out] - static_cast<double>(plan.copy_out_bytes_per_walk);
  if (measured.copied.copied_in_bytes != plan.copy_in_bytes_per_walk || inputs < 0 || rows < 0)
    throw Error(ErrorKind::runtime, "the engine copied other bytes than were foretold");
}

Measured run(const Case& which, bool on_disk, const fs::path& parent, const Rates& rates) {
  TrialOptions options{.workload = which.workload, .layers = kLayers, .gpu = which.gpu};
  if (on_disk) options.folder = parent;
  TrialRun run(options);
  const Prediction predicted =
      predict(run.device(), which, trainer_options(options), rates, run.pool().thread_count());
  const Measured measured = train(run);
  check_bytes(predicted, run.trainer().engine().plan(), measured);
  print(which, on_disk, predicted, measured);
  return measured;
}

int run_all_cases(const fs::path& folder) {
  Rates rates;
  {
    finetune::Runtime runtime = finetune::make_runtime({});
    const Clock::time_point begin = Clock::now();
    rates.machine = finetune::measure_machine(*runtime.device, *runtime.pool, DType::bf16);
    std::printf("machine: measured in %.1f s\n", std::chrono::duration<double>(Clock::now() - begin).count());
    for (const auto& [op, rate] : rates.machine.ops)
      std::printf("  %-24s %8.2f G/s\n", op.c_str(), rate * 1e-9);
    std::printf("  copies %.1f GB/s, AdamW %.2f G parameters/s, norm %.1f GB/s, checksums %.1f GB/s\n",
                rates.machine.copy_bytes_per_second * 1e-9,
                rates.machine.optimizer_parameters_per_second * 1e-9,
                rates.machine.norm_bytes_per_second * 1e-9, rates.machine.checksum_bytes_per_second * 1e-9);
  }
  rates.drive = measure_drive(folder);
  for (const Case& which : cases()) {
    const Measured ram = run(which, false, folder, rates);
    const Measured disk = run(which, true, folder, rates);
    if (ram.losses != disk.losses) {
      std::printf("WRONG: with the states on disk the losses differ\n");
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  using namespace sluice;
  std::string folder = ".";
  bench::Program program("bench_prediction", "Foretold against measured seconds of a training step.");
  program.add({.name = "folder", .value = text_value(folder, "DIR"), .help = "on the drive"});
  return program.main(count, values, [&] { return bench::run_all_cases(folder); });
}
