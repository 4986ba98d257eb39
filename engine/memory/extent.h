#pragma once

#include <cstddef>

#include "engine/memory/tier.h"

namespace sluice {

// A byte range in a tier: an offset into the tier's arena (device, host) or slab (disk). A value; owns
// nothing.
struct Extent {
  Tier tier = Tier::host;
  size_t offset = 0;
  size_t size_bytes = 0;
};

}  // namespace sluice
