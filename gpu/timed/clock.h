#pragma once

#include <cstdint>

namespace sluice::gpu {

// Time as a timed device sees it. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() = 0;
  // Returns once now_ns() is at least that, or earlier where tests let time stand still.
  virtual void sleep_until(int64_t time_ns) = 0;
};

// The steady clock of the machine.
class SteadyClock final : public Clock {
 public:
  int64_t now_ns() override;
  void sleep_until(int64_t time_ns) override;
};

}  // namespace sluice::gpu
