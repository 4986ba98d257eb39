#include "apps/finetune/runtime.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <string>
#include <thread>

#include "apps/common/pool.h"
#include "engine/base/thread_annotations.h"
#include "gpu/host/host_ops.h"
#include "gpu/reference/reference_ops.h"

namespace sluice::finetune {

Runtime make_runtime(const RuntimeOptions& options) {
  Runtime runtime;
  if (options.trace) runtime.trace = std::make_shared<Trace>(*options.trace);
  runtime.pool = make_pool(options.thread_count);
  gpu::OpsFactory factory = [](Executor& executor, gpu::Enqueue enqueue) {
    return gpu::make_host_ops(executor, std::move(enqueue));
  };
  if (options.reference_ops) {
    factory = [](Executor&, gpu::Enqueue enqueue) {
      return std::make_unique<gpu::ReferenceOps>(std::move(enqueue));
    };
  }
  runtime.device = gpu::make_host_device({.executor = *runtime.pool,
                                          .make_ops = std::move(factory),
                                          .delay_seed = options.delay_seed,
                                          .check_hazards = options.check_hazards,
                                          .on_violation = gpu::OnViolation::abort,
                                          .trace = runtime.trace.get()});
  return runtime;
}

size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  size_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssShmem:"))
      kib += std::stoull(line.substr(line.find(':') + 1));
  }
  return kib * 1024;
}

struct PeakMemory::Sampler {
  std::atomic<size_t> peak_bytes = 0;
  Mutex mutex;
  std::condition_variable_any stop;
  bool stopping GUARDED_BY(mutex) = false;
  std::thread thread;

  void sample() {
    MutexLock lock(mutex);
    while (!stopping) {
      peak_bytes = std::max<size_t>(peak_bytes, resident_bytes());
      stop.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
};

PeakMemory::PeakMemory() : sampler_(std::make_unique<Sampler>()) {
  sampler_->thread = std::thread([sampler = sampler_.get()] { sampler->sample(); });
}

PeakMemory::~PeakMemory() {
  {
    MutexLock lock(sampler_->mutex);
    sampler_->stopping = true;
  }
  sampler_->stop.notify_all();
  sampler_->thread.join();
}

size_t PeakMemory::bytes() const {
  return std::max<size_t>(sampler_->peak_bytes, resident_bytes());
}

}  // namespace sluice::finetune
