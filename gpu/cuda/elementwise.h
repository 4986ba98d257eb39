#pragma once

#include <cuda_runtime_api.h>

#include "gpu/ops/elementwise.h"

// Launchers: each puts one kernel into the stream of the current device and returns. Bits equal the
// reference's, except which NaN a NaN is. One element a thread and access, so about as fast as memory for
// contiguous fp32 only.
namespace sluice::gpu::cuda {

void launch(const Cast& op, cudaStream_t stream);
void launch(const Add& op, cudaStream_t stream);
void launch(const Scale& op, cudaStream_t stream);
void launch(const Fill& op, cudaStream_t stream);
void launch(const JoinSplit& op, cudaStream_t stream);

}  // namespace sluice::gpu::cuda
