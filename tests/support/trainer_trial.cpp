#include "tests/support/trainer_trial.h"

#include <gtest/gtest.h>

#include "apps/common/pool.h"
#include "engine/base/error.h"
#include "gpu/host/host_ops.h"
#include "io/make_io_queue.h"

namespace sluice::test {

using finetune::BatchLimits;
using finetune::Trainer;

finetune::TrainerOptions trainer_options(const BatchLimits& limits, const TrialOptions& options) {
  return {
      .compute_dtype = options.compute_dtype,
      .limits = limits,
      .prefetch_distance = options.prefetch_distance,
      .gradient_shards = options.gradient_shards,
      .recompute = options.recompute,
      .device_limit_bytes = options.device_limit_bytes,
      .disk = options.disk.has_value(),
      .spill = options.disk ? options.disk->spill : Spill::automatic,
      .layer_inputs = options.disk ? options.disk->layer_inputs : options.layer_inputs,
      .host_parts = {},
      .freeze = options.freeze,
      .state_format = options.state_format,
      .gradient_dtype = options.gradient_dtype,
      .seed = 42,
      .adam = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .variant = options.variant},
      .max_gradient_norm = options.max_gradient_norm};
}

HostRuntime make_host_runtime(const TrialOptions& options) {
  HostRuntime runtime{.pool = make_pool(options.thread_count), .device = {}};
  runtime.device = gpu::make_host_device({.executor = *runtime.pool,
                                          .make_ops = gpu::make_host_ops,
                                          .delay_seed = options.delay_seed,
                                          .step_seed = options.step_seed,
                                          .check_hazards = true});
  return runtime;
}

size_t least_device_bytes(const ModelConfig& config, const BatchLimits& limits, const TrialOptions& options) {
  const HostRuntime runtime = make_host_runtime(options);
  TrialOptions too_little = options;
  too_little.device_limit_bytes = 1;
  try {
    (void)Trainer::plan(*runtime.device, config, trainer_options(limits, too_little));
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), exit_code(ErrorKind::resource));
    const std::string text = error.what();
    const size_t end = text.find(" bytes)");
    const size_t begin = text.rfind('(', end);
    if (end != std::string::npos && begin != std::string::npos)
      return std::stoull(text.substr(begin + 1, end - begin - 1));
    ADD_FAILURE() << "no number of bytes in: " << text;
    return 0;
  }
  ADD_FAILURE() << "one byte was enough";
  return 0;
}

TrialStore::TrialStore(const ModelConfig& config, const TrialDisk& disk)
    : config_(config), disk_(disk), memory_(std::make_shared<MemoryDisk>()) {}

StateLayout TrialStore::layout(const finetune::TrainerOptions& options) const {
  return Trainer::state_layout(config_, options);
}

IoQueueFactory TrialStore::queues() const {
  if (disk_.queue == TrialQueue::memory) {
    MemoryQueue::Options options{.seed = disk_.seed};
    options.faults = {{.kind = IoFault::Kind::delay, .delay_seconds = 1e-3, .rate = 0.3},
                      {.kind = IoFault::Kind::short_transfer, .rate = 0.2}};
    return
        [memory = memory_, options](const auto&) { return std::make_unique<MemoryQueue>(memory, options); };
  }
  const IoChoice choice{
      .engine = disk_.queue == TrialQueue::threads ? IoChoice::Engine::threads : IoChoice::Engine::automatic,
      .queue = {.thread_count = 2}};
  return [choice](std::vector<std::span<std::byte>> buffers) {
    IoChoice with_buffers = choice;
    with_buffers.queue.buffers = std::move(buffers);
    return make_io_queue(with_buffers, nullptr);
  };
}

void TrialStore::give(finetune::TrainerOptions& options) {
  options.state_file = file_.get();
  options.make_queue = queues();
}

void TrialStore::create(finetune::TrainerOptions& options) {
  file_.reset();
  StateFileOptions where{.drives = {}, .manifest_folder = folder_ / "manifest", .identity = {}};
  for (int drive = 0; drive < disk_.drive_count; ++drive)
    where.drives.push_back({folder_ / ("drive" + std::to_string(drive)), 1.0 + drive});
  const std::unique_ptr<IoQueue> queue = queues()({});
  file_ = StateFile::create(where, layout(options), *locks_, {.queue = *queue});
  give(options);
}

void TrialStore::open(finetune::TrainerOptions& options) {
  file_.reset();
  const std::unique_ptr<IoQueue> queue = queues()({});
  file_ = StateFile::open(folder_ / "manifest", {}, layout(options), *locks_, {.queue = *queue});
  give(options);
}

double trial_learning_rate(size_t step) {
  return 1e-2 / static_cast<double>(step + 1);
}

TrialResult train(Trainer& trainer, std::span<const Window> windows) {
  TrialResult result;
  for (const Window& window : windows) {
    const finetune::StepReport report = trainer.step(window, trial_learning_rate(result.losses.size()));
    EXPECT_EQ(report.bad_row, "");
    EXPECT_FALSE(report.skipped);
    result.losses.push_back(report.loss);
    result.gradient_norms.push_back(report.gradient_norm);
  }
  result.state_hash = trainer.engine().state_hash();
  return result;
}

TrialResult train(const ModelConfig& config, std::span<const Window> windows, const TrialOptions& options) {
  const HostRuntime runtime = make_host_runtime(options);
  TrialResult result;
  std::optional<TrialStore> store;
  finetune::TrainerOptions how = trainer_options(limits_of(windows), options);
  if (options.disk) store.emplace(config, *options.disk).create(how);
  {
    Trainer trainer(*runtime.device, *runtime.pool, config, how);
    if (options.device_limit_bytes) {
      EXPECT_LE(runtime.device->used_bytes(), *options.device_limit_bytes);
    }
    fill_weights(trainer.engine().store(), kWeightSeed);
    result = train(trainer, windows);
    if (options.device_limit_bytes) {
      EXPECT_LE(runtime.device->used_bytes(), *options.device_limit_bytes);
    }
  }
  EXPECT_EQ(runtime.device->hazard_checker()->violation_count(), 0u);
  for (const gpu::Violation& violation : runtime.device->hazard_checker()->violations()) {
    ADD_FAILURE() << violation.text;
    break;
  }
  return result;
}

}  // namespace sluice::test
