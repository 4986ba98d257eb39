#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "engine/base/thread_annotations.h"
#include "gpu/device.h"
#include "gpu/memory_budget.h"
#include "gpu/stream_hooks.h"

namespace sluice::gpu {

// The memory of the host device: RAM, counted and limited like that of an accelerator. Each allocation is a
// mapping of its own, on huge pages from 2 MiB on, and goes back to the system when freed; pages cost RAM
// once touched. Thread-safe; must outlive what it handed out.
class Arena {
 public:
  // limit_bytes 0: no limit. The observer may be null.
  Arena(size_t limit_bytes, std::shared_ptr<StreamObserver> observer)
      : budget_(limit_bytes), observer_(std::move(observer)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws Error(resource).
  std::unique_ptr<DeviceMemory> allocate(size_t size_bytes) EXCLUDES(mutex_);
  // Whether the range lies within one allocation.
  bool contains(const std::byte* begin, size_t size_bytes) const EXCLUDES(mutex_);
  size_t used_bytes() const { return budget_.used_bytes(); }

 private:
  class Memory;

  MemoryBudget budget_;
  const std::shared_ptr<StreamObserver> observer_;
  mutable Mutex mutex_;
  std::map<const std::byte*, size_t> allocations_ GUARDED_BY(mutex_);  // begin to size
};

}  // namespace sluice::gpu
