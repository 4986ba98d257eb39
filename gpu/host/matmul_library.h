#pragma once

#include "gpu/host/matmul.h"

namespace sluice::gpu::host {

// The matmul library that the linker took (CMake option SLUICE_MATMUL): oneDNN or Eigen.
const char* library_name();
// Its kernel for an operand dtype, or null where this processor is not served.
const MatmulKernel* library_matmul(DType operand);

}  // namespace sluice::gpu::host
