#pragma once

#include "gpu/ops/ops.h"

// The oracle: every op as plain loops over memory of the host, in double, in the order of its formula. Slow
// and meant to be read. What another backend may differ by is in tests/support/tolerance.h.
namespace sluice::gpu::reference {

// Runs `op` now, on the calling thread. Needs no workspace. Thread-safe where the operands do not overlap.
void run(const Op& op, Workspace workspace = {});

// A packed weight is the plain row-major (rows, cols) matrix in `dtype`, whatever the layout.
size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout);
size_t workspace_bytes(const Op& op);

}  // namespace sluice::gpu::reference
