#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "io/io_queue.h"

namespace sluice::finetune {

// Bytes that were handed to drives for writing; retries count again, as they do for the drive. Any thread.
class WriteCount {
 public:
  void add(uint64_t bytes) { bytes_ += bytes; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::atomic<uint64_t> bytes_ = 0;
};

// The same queue, whose writes are counted; `count` outlives it.
std::unique_ptr<IoQueue> count_writes(std::unique_ptr<IoQueue> queue, WriteCount& count);

}  // namespace sluice::finetune
