#include "gpu/reference/reference.h"

#include "gpu/reference/kernels.h"

namespace sluice::gpu::reference {

void run(const Op& op, Workspace) {
  std::visit([](const auto& known) { kernels::run(known); }, op);
}

size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout) {
  return static_cast<size_t>(rows * cols) * size_bytes(dtype);
}

size_t workspace_bytes(const Op&) {
  return 0;
}

}  // namespace sluice::gpu::reference
