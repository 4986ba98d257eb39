#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "io/observed_queue.h"

namespace sluice::finetune {

// Bytes that were handed to drives for writing; retries count again, as they do for the drive. Any thread.
class WriteCount {
 public:
  void add(uint64_t bytes) { bytes_ += bytes; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::atomic<uint64_t> bytes_ = 0;
};

// Counts the writes of a queue; `count` outlives it.
std::unique_ptr<IoObserver> count_writes(WriteCount& count);

}  // namespace sluice::finetune
