// What a run takes of the system does not grow with its steps.
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "tests/support/trainer_trial.h"

namespace sluice::test {
namespace {

struct Usage {
  ptrdiff_t descriptors = 0;
  ptrdiff_t threads = 0;
  ptrdiff_t resident_kib = 0;
  ptrdiff_t locked_kib = 0;
};

Usage usage() {
  Usage now;
  now.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto value = [&] { return std::stol(line.substr(line.find(':') + 1)); };
    if (line.starts_with("Threads:")) now.threads = value();
    if (line.starts_with("RssAnon:")) now.resident_kib = value();
    if (line.starts_with("VmLck:") || line.starts_with("VmPin:")) now.locked_kib += value();
  }
  return now;
}

TEST(TrainerFlat, OverAThousandSteps) {
  const ModelConfig config = tiny_config(true);
  const std::vector<Window> windows = ragged_windows(3, config.vocab_size, 4, 2);
  const TrialOptions how{.thread_count = 2,
                         .disk = TrialDisk{.layer_inputs = LayerInputs::disk, .queue = TrialQueue::io_uring}};
  const HostRuntime runtime = make_host_runtime(how);
  finetune::TrainerOptions options = trainer_options(limits_of(windows), how);
  TrialStore store(config, *how.disk);
  store.create(options);
  finetune::Trainer trainer(*runtime.device, *runtime.pool, config, options);
  fill_weights(trainer.engine().store(), kWeightSeed);
  Usage before;
  constexpr int kSettled = 200, kSteps = 1000;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kSettled) before = usage();
    (void)trainer.step(windows[static_cast<size_t>(step) % windows.size()], 1e-4);
    if (step % 10 == 0) (void)trainer.engine().save({.applied_step = 0, .run = {{"step", step}}});
  }
  trainer.engine().wait();
  const Usage after = usage();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LE(after.locked_kib, before.locked_kib);
  EXPECT_LE(after.resident_kib, before.resident_kib + 4096);
}

}  // namespace
}  // namespace sluice::test
