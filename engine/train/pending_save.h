#pragma once

#include <exception>
#include <memory>
#include <utility>

#include "engine/base/trace.h"
#include "gpu/stream.h"

namespace sluice {

// A generation that is being made in the background. Copies share it.
class PendingSave {
 public:
  // `failure` is set by the lane before `ended`, if at all.
  PendingSave(gpu::Event ended, std::shared_ptr<const std::exception_ptr> failure)
      : ended_(std::move(ended)), failure_(std::move(failure)) {}

  bool ended() const { return ended_.done(); }
  // Until the generation is there, durably. Throws why it is not: the one before it is still whole then, and
  // training may go on and save again.
  void wait() const {
    {
      const TraceWait wait("wait for the save");
      ended_.wait();
    }
    if (*failure_) std::rethrow_exception(*failure_);
  }

 private:
  gpu::Event ended_;
  std::shared_ptr<const std::exception_ptr> failure_;
};

}  // namespace sluice
