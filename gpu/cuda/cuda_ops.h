#pragma once

#include <string>

#include "gpu/ops/ops.h"

namespace sluice::gpu::cuda {

// The kernels that exist on CUDA so far: fill, cast, add, scale, join_split. Others are refused by name with
// Error(runtime). Packed weights are plain row-major. Thread-safe.
class CudaOps final : public Ops {
 public:
  void submit(Stream& stream, Op op, Workspace workspace) override;
  size_t workspace_bytes(const Op& op) const override;
  size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout) const override;
  std::string kernel_table_id() const override { return "cuda-elementwise-1"; }
  DType preferred_compute_dtype() const override { return DType::bf16; }
};

}  // namespace sluice::gpu::cuda
