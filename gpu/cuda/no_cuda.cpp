#include "gpu/cuda/cuda_device.h"

namespace sluice::gpu {

std::string cuda_unavailable_reason() {
  return "no CUDA device: this program was built without CUDA (CMake preset cuda builds it in)";
}

std::unique_ptr<Device> make_cuda_device(int /*ordinal*/, const CudaDeviceOptions& /*options*/) {
  throw Error(ErrorKind::resource, cuda_unavailable_reason());
}

}  // namespace sluice::gpu
