#include "bench/support/trial_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <span>
#include <string>
#include <unistd.h>

#include "apps/common/median.h"
#include "io/make_io_queue.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;
using finetune::Trainer;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// When an event was reached, as seen by a thread of its own.
std::future<Clock::time_point> time_of(const gpu::Event& event) {
  return std::async(std::launch::async, [event] {
    event.wait();
    return Clock::now();
  });
}

}  // namespace

BenchFolder::BenchFolder(const std::filesystem::path& parent) {
  static std::atomic<int> count = 0;
  path_ = parent / ("sluice_bench." + std::to_string(::getpid()) + "." + std::to_string(count++));
  std::filesystem::create_directories(path_);
}

BenchFolder::~BenchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ModelConfig model_config(const TrialOptions& options) {
  ModelConfig config = smollm2(options.layers);
  config.vocab_size = options.vocab_size;
  return config;
}

finetune::TrainerOptions trainer_options(const TrialOptions& options) {
  finetune::TrainerOptions result = trainer_options(options.dtype, options.workload);
  result.max_gradient_norm = options.max_gradient_norm;
  result.recompute = options.recompute;
  result.prefetch_distance = options.prefetch_distance;
  result.state_format = options.state_format;
  result.host_parts = options.host_parts;
  if (options.gpu && options.gpu->memory_bytes > 0) result.device_limit_bytes = options.gpu->memory_bytes;
  if (options.folder) {
    result.disk = true;
    result.spill = options.spill;
    result.layer_inputs = options.layer_inputs;
    result.make_queue = [](std::vector<std::span<std::byte>> buffers) {
      return make_io_queue({.queue = {.buffers = std::move(buffers)}}, nullptr);
    };
  }
  return result;
}

TrialRun::TrialRun(const TrialOptions& options) : runtime_(finetune::make_runtime({})) {
  const ModelConfig config = model_config(options);
  finetune::TrainerOptions of_trainer = trainer_options(options);
  if (options.folder) {
    folder_.emplace(*options.folder);
    const std::unique_ptr<IoQueue> queue = of_trainer.make_queue({});
    file_ = StateFile::create({.drives = {{folder_->path() / "drive", 1}},
                               .manifest_folder = folder_->path() / "state",
                               .identity = {}},
                              Trainer::state_layout(config, of_trainer), locks_, {.queue = *queue});
    of_trainer.state_file = file_.get();
  }
  if (options.gpu) timed_ = gpu::make_timed_device(*runtime_.device, {.model = *options.gpu});
  trainer_ = std::make_unique<Trainer>(device(), *runtime_.pool, config, of_trainer);
  fill_weights(trainer_->engine().store());
  batches_ = scattered_batches(options.workload, config.vocab_size);
}

TrialRun::~TrialRun() = default;

TrialRun::Step TrialRun::step(UpdateRun update) {
  std::future<Clock::time_point> forward_end;
  trainer_->observe_phases([&](Phase ended, const gpu::Event& end) {
    if (ended == Phase::forward) forward_end = time_of(end);
  });
  Step step;
  const Clock::time_point begin = Clock::now();
  step.loss = trainer_->step(batches_, 1e-4).loss;
  if (update == UpdateRun::alone) {
    const Clock::time_point update_begin = Clock::now();
    trainer_->engine().wait();
    step.update_seconds = seconds_since(update_begin);
  }
  step.seconds = seconds_since(begin);
  step.forward_seconds = std::chrono::duration<double>(forward_end.get() - begin).count();
  return step;
}

TrialRun::Medians TrialRun::steps(int timed_count, UpdateRun update) {
  Medians result;
  std::vector<double> all, forward, updates;
  for (int i = 0; i < 1 + timed_count; ++i) {
    const Step timed = step(update);
    result.losses.push_back(timed.loss);
    if (i == 0) continue;
    all.push_back(timed.seconds);
    forward.push_back(timed.forward_seconds);
    updates.push_back(timed.update_seconds);
  }
  result.seconds = median(all);
  result.least_seconds = std::ranges::min(all);
  result.forward_seconds = median(forward);
  result.update_seconds = median(updates);
  return result;
}

}  // namespace sluice::bench
