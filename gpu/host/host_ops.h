#pragma once

#include <memory>

#include "engine/base/executor.h"
#include "gpu/ops/ops.h"

namespace sluice::gpu {

// The ops of the CPU: each becomes one task of a stream, and splits its loops over the executor. `enqueue` is
// how a task gets into a stream; both outlive the ops. Thread-safe if they are.
std::unique_ptr<Ops> make_host_ops(Executor& executor, Enqueue enqueue);

}  // namespace sluice::gpu
