#pragma once

#include "engine/store/state_file.h"

namespace sluice {

// Into slot 0 of the new store `to`, what `from`, of the same model in another state format, has committed:
// exactly where that can hold it, else the nearest (cpu_optim/state_codec.h). Chunk by chunk, in some
// 30 MiB of RAM. False where `stop` ended it. Then commit() with all slots 0.
[[nodiscard]] bool convert_state(const StateFile& from, StateFile& to, const LongTransfer& transfer);

}  // namespace sluice
