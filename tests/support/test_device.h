#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/executor.h"
#include "gpu/device.h"

namespace sluice::test {

struct TestDeviceOptions {
  int thread_count = 2;
  std::optional<uint64_t> delay_seed = {};  // every task of every stream is held back a little
  bool reference_ops = false;               // plain loops in double instead of the host's kernels
  bool shares_host_memory = true;           // false: plans are made as for a GPU with memory of its own
};

// A pool and the host device over it, watched by the hazard checker: hazards that nobody took fail the test.
// Threads, streams and memory of the device must be gone before it.
class TestDevice {
 public:
  explicit TestDevice(const TestDeviceOptions& options = {});
  ~TestDevice();
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  Executor& pool() { return *pool_; }
  gpu::Device& device();
  // Of the device tier, now.
  size_t used_bytes() const;
  // What the hazard checker found so far, for tests that want it found.
  std::vector<std::string> take_hazards();

 private:
  struct Impl;
  std::unique_ptr<Executor> pool_;
  std::unique_ptr<Impl> impl_;
  size_t taken_hazard_count_ = 0;
};

// Waits where the hazard checker does not see it: so a test can leave out a wait without a race.
void wait_unseen(const gpu::Event& event);

}  // namespace sluice::test
