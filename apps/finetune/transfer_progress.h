#pragma once

#include <atomic>
#include <string>

#include "apps/common/interrupt.h"
#include "engine/store/state_file.h"

namespace sluice::finetune {

// Long transfers that say on standard error how far they have come (a line, and on a terminal per cent), and
// that a signal stops. Outlives its transfers.
class WatchedTransfers {
 public:
  WatchedTransfers(IoQueue& queue, const InterruptWatch& watch) : queue_(queue), watch_(watch) {}
  WatchedTransfers(const WatchedTransfers&) = delete;
  WatchedTransfers& operator=(const WatchedTransfers&) = delete;

  LongTransfer transfer(const std::string& what);

 private:
  IoQueue& queue_;
  const InterruptWatch& watch_;
  std::atomic<bool> stop_ = false;
};

}  // namespace sluice::finetune
