// What exact clipping costs. The update of a step needs the norm of all its gradients, so it cannot begin
// before the end of backward; it runs under the next forward pass instead. SmolLM2-135M's shape on a modelled
// GPU whose rates are chosen so that the update takes 0.8 of a forward pass (on the host device both would
// share the cores, and nothing could be hidden).
//
//   bench_clip [--folder DIR]
//
// With everything in RAM (SmolLM2-135M's layers, a sixth of its vocabulary), and with everything on disk
// below DIR (a third of the layers, as the drive takes longer):
//   ratio clip_cost_WHERE     a step with clipping / the same step without
//   ratio serial_cost_WHERE   the same step with its update run alone, before the next forward / ours
// and the worse of both as `ratio clip_cost` and `ratio serial_cost`. First compares, with numerics on, the
// bits of clipped steps with those of updates that run alone. Fails where the update does not take 0.7 to 0.9
// of the forward pass, or that not a quarter of the step.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/median.h"
#include "bench/support/program.h"
#include "bench/support/trial_run.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

constexpr double kUpdateShare = 0.8;  // of the forward pass
constexpr int64_t kVocabulary = 8192;
constexpr Workload kWorkload{.micro_batch_count = 4, .rows = 8, .row_tokens = 512};

bool verify() {
  const auto run = [](double max_norm, UpdateRun update) {
    TrialRun trial({.workload = {.micro_batch_count = 2, .rows = 1, .row_tokens = 64},
                    .layers = 2,
                    .max_gradient_norm = max_norm});
    for (int step = 0; step < 3; ++step) trial.step(update);
    return trial.trainer().engine().state_hash();
  };
  const uint64_t clipped = run(0.5, UpdateRun::overlapped);
  const bool good = clipped == run(0.5, UpdateRun::alone) && clipped != run(0, UpdateRun::overlapped);
  std::printf("verify: clipped steps have the bits of updates that run alone: %s\n", good ? "ok" : "WRONG");
  return good;
}

// All rates of a GPU so many times as high: compute takes that much less, and has the same shape.
gpu::GpuModel scaled(double times) {
  gpu::GpuModel model = gpu::gpu_model("RTX 4090");
  model.name = "a modelled GPU";
  model.memory_bytes = size_t{80} << 30;
  model.bf16_flops_per_second *= times;
  model.f32_flops_per_second *= times;
  model.memory_bytes_per_second *= times;
  return model;
}

struct Costs {
  double clip = 0, serial = 0;
};

std::optional<Costs> compare(const std::string& name, TrialOptions options, double first_times, int steps) {
  // The update's time drifts with the machine: it is measured again with each choice of the rates.
  double times = first_times, forward = 0, update = 0, step = 0;
  constexpr int kMostTries = 4;
  for (int tries = 0; tries < kMostTries; ++tries) {
    options.gpu = scaled(times);
    const TrialRun::Medians alone = TrialRun(options).steps(steps, UpdateRun::alone);
    forward = alone.forward_seconds;
    update = alone.update_seconds;
    step = alone.seconds - update;
    const double share = update / forward;
    std::printf("%s: %.3f of an RTX 4090: forward %.3f s, update %.3f s (%.2f of it), step %.3f s\n",
                name.c_str(), times, forward, update, share, step);
    if (std::abs(share - kUpdateShare) <= 0.05) break;
    times *= kUpdateShare / share;
  }
  if (update / forward < 0.7 || update / forward > 0.9 || forward / step < 0.25) {
    std::printf("FAILED: the update and the forward pass are too far apart to say something about hiding\n");
    return std::nullopt;
  }
  // In turns, so that a drifting machine slows all alike.
  TrialRun clipping(options);
  options.max_gradient_norm = 0;
  TrialRun not_clipping(options);
  std::vector<double> clipped, unclipped, serial;
  for (int round = 0; round < 3; ++round) {
    clipped.push_back(clipping.steps(steps).seconds);
    unclipped.push_back(not_clipping.steps(steps).seconds);
    serial.push_back(clipping.steps(steps, UpdateRun::alone).seconds);
  }
  const Costs costs{median(clipped) / median(unclipped), median(serial) / median(clipped)};
  std::printf(
      "%s: a step %.3f s, without clipping %.3f s, with the update alone %.3f s: %.0f %% of the update is "
      "hidden\n",
      name.c_str(), median(clipped), median(unclipped), median(serial),
      100 * (median(serial) - median(clipped)) / update);
  std::printf("ratio clip_cost_%s %.3f\nratio serial_cost_%s %.3f\n", name.c_str(), costs.clip, name.c_str(),
              costs.serial);
  return costs;
}

int run(const std::string& folder) {
  if (!verify()) return 1;
  const std::optional<Costs> ram =
      compare("ram", {.workload = kWorkload, .vocab_size = kVocabulary}, 0.6, 12);
  const std::optional<Costs> disk = compare(
      "disk", {.workload = kWorkload, .layers = 10, .vocab_size = kVocabulary, .folder = folder}, 0.026, 2);
  if (!ram || !disk) return 1;
  std::printf("ratio clip_cost %.3f\nratio serial_cost %.3f\n", std::max(ram->clip, disk->clip),
              std::min(ram->serial, disk->serial));
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  using namespace sluice;
  std::string folder = ".";
  bench::Program program("bench_clip", "What exact clipping costs, on a modelled GPU.");
  program.add({.name = "folder", .value = text_value(folder, "DIR"), .help = "on the drive"});
  return program.main(count, values, [&] { return bench::run(folder); });
}
