#pragma once

#include <cuda_runtime_api.h>

#include "engine/base/error.h"

namespace sluice::gpu::cuda {

// Throws what the runtime reported: Error(resource) for memory, Error(runtime) for all else. `what` names the
// call in the message.
void check(cudaError_t result, const char* what);

// Makes `ordinal` the calling thread's current device: streams, events, memory and kernels made or launched
// next belong to it.
void use_device(int ordinal);

}  // namespace sluice::gpu::cuda
