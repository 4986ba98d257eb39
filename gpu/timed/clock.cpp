#include "gpu/timed/clock.h"

#include <chrono>
#include <thread>

namespace sluice::gpu {

int64_t SteadyClock::now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void SteadyClock::sleep_until(int64_t time_ns) {
  if (time_ns <= now_ns()) return;
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time_ns)));
}

}  // namespace sluice::gpu
