#pragma once

#include "gpu/ops/ops.h"

namespace sluice::gpu {

// Stops the program (SLUICE_CHECK, naming op and operand) where shapes, dtypes or strides of `op` do not fit
// together: such an op is a bug of its caller. Reads no memory of the device: indices and targets are not
// looked at. Each backend's submit calls it, so that all refuse alike.
void validate(const Op& op);

}  // namespace sluice::gpu
