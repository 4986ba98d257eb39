#pragma once

#include <memory>

#include "engine/base/executor.h"

namespace sluice {

// The process's pool. oneTBB's, or (CMake option SLUICE_TBB=OFF, for ThreadSanitizer) one of std::thread.
// thread_count 0 takes one thread per core that this process may use.
std::unique_ptr<Executor> make_pool(int thread_count = 0);

// Cores that this process may run on (its affinity mask), at least 1.
int usable_core_count();

}  // namespace sluice
