#include "gpu/cuda/cuda_error.h"

#include <string>

namespace sluice::gpu::cuda {

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  const ErrorKind kind = result == cudaErrorMemoryAllocation ? ErrorKind::resource : ErrorKind::runtime;
  throw Error(kind, std::string("CUDA: ") + what + " failed: " + cudaGetErrorString(result) + " (" +
                        cudaGetErrorName(result) + ")");
}

void use_device(int ordinal) {
  check(cudaSetDevice(ordinal), "cudaSetDevice");
}

}  // namespace sluice::gpu::cuda
