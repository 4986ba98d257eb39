#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gpu/device.h"

namespace sluice::gpu {

struct CudaDeviceOptions {
  size_t memory_limit_bytes = 0;  // of the device tier; 0: none
};

// Empty where at least one CUDA device can be used, else why not: "no CUDA device: ...".
std::string cuda_unavailable_reason();

// The `ordinal`-th CUDA device. Its compute and copy streams are CUDA streams, its cpu streams are threads of
// this process. Copies are asynchronous where the host memory is registered. Throws Error(resource) where
// there is no such device, with cuda_unavailable_reason's words.
std::unique_ptr<Device> make_cuda_device(int ordinal, const CudaDeviceOptions& options = {});

}  // namespace sluice::gpu
