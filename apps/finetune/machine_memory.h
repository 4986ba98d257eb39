#pragma once

#include <cstddef>

namespace sluice::finetune {

// RAM that this process could ever have: the machine's, or the limit of its control group (v2) where that is
// lower.
size_t machine_memory_bytes();
// Of that, what is free now or could be freed (MemAvailable).
size_t available_memory_bytes();

}  // namespace sluice::finetune
