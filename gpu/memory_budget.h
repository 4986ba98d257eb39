#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "engine/base/error.h"
#include "engine/base/thread_annotations.h"

namespace sluice::gpu {

// Counts the bytes that a device has handed out and keeps them under a limit. Thread-safe.
class MemoryBudget {
 public:
  // 0: no limit.
  explicit MemoryBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Throws Error(resource) where that many are not free.
  void reserve(size_t size_bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (limit_bytes_ != 0 && size_bytes > limit_bytes_ - used_bytes_) {
      const size_t free_bytes = limit_bytes_ - used_bytes_;
      throw Error(ErrorKind::resource, "device memory: asked for " + std::to_string(size_bytes) + " bytes, " +
                                           std::to_string(free_bytes) + " of " +
                                           std::to_string(limit_bytes_) +
                                           " are free. Raise --device_memory.");
    }
    used_bytes_ += size_bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  }
  void give_back(size_t size_bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    SLUICE_CHECK(size_bytes <= used_bytes_);
    used_bytes_ -= size_bytes;
  }
  size_t used_bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return used_bytes_;
  }
  // The most that was handed out at a time.
  size_t peak_bytes() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return peak_bytes_;
  }

 private:
  const size_t limit_bytes_;
  mutable Mutex mutex_;
  size_t used_bytes_ GUARDED_BY(mutex_) = 0;
  size_t peak_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::gpu
