#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/base/executor.h"
#include "engine/base/trace.h"
#include "gpu/host/host_device.h"

namespace sluice::finetune {

struct RuntimeOptions {
  int thread_count = 0;                   // 0: cores that this process may use
  std::optional<uint64_t> delay_seed;     // every task of every stream is held back a little, by this seed
  bool check_hazards = false;             // abort at an access that no event orders
  bool reference_ops = false;             // plain loops in double precision: the oracle
  std::optional<TraceWindow> trace = {};  // what the device's streams do is recorded
};

// The pool and the device of a run.
struct Runtime {
  std::shared_ptr<Trace> trace;  // null: none
  std::unique_ptr<Executor> pool;
  std::unique_ptr<gpu::HostDevice> device;
};
Runtime make_runtime(const RuntimeOptions& options);

// RssAnon + RssShmem of this process now, in bytes: memory that is its own and not the page cache's.
size_t resident_bytes();
// The largest resident_bytes() that a sampling thread saw while this object lived, 50 times a second.
class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;
  size_t bytes() const;

 private:
  struct Sampler;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace sluice::finetune
