#pragma once

#include "engine/memory/tier.h"

namespace sluice {

// The tier that holds what of a block between its uses: host or disk.
struct BlockHome {
  Tier weights = Tier::host;
  Tier moments = Tier::host;
  Tier gradient = Tier::host;  // until its update
  bool operator==(const BlockHome&) const = default;
};

}  // namespace sluice
