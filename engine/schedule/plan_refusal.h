#pragma once

#include <string>

#include "engine/base/error.h"
#include "engine/memory/tier.h"

namespace sluice {

// No plan fits a limit: which, and what the least is that would do.
class PlanRefusal : public Error {
 public:
  PlanRefusal(Tier tier, size_t least_bytes, const std::string& message)
      : Error(ErrorKind::resource, message), tier_(tier), least_bytes_(least_bytes) {}
  Tier tier() const { return tier_; }
  size_t least_bytes() const { return least_bytes_; }

 private:
  Tier tier_;
  size_t least_bytes_;
};

}  // namespace sluice
