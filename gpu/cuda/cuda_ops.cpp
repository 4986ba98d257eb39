#include "gpu/cuda/cuda_ops.h"

#include "gpu/cuda/cuda_error.h"
#include "gpu/cuda/cuda_stream.h"
#include "gpu/cuda/elementwise.h"
#include "gpu/ops/validate.h"

namespace sluice::gpu::cuda {
namespace {

// Chosen where no kernel has the op's type.
template <class OtherOp>
void launch(const OtherOp&, cudaStream_t) {
  throw Error(ErrorKind::runtime, std::string("op ") + OtherOp::kName +
                                      " has no CUDA kernel yet. Use the host device (--device host).");
}

}  // namespace

void CudaOps::submit(Stream& stream, Op op, Workspace) {
  SLUICE_CHECK(stream.kind() == StreamKind::compute, "ops are for compute streams");
  validate(op);
  const CudaStream& cuda_stream = as_cuda(stream);
  use_device(cuda_stream.ordinal());
  std::visit([&](const auto& known) { launch(known, cuda_stream.handle()); }, op);
}

size_t CudaOps::workspace_bytes(const Op&) const {
  return 0;
}

size_t CudaOps::packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout) const {
  SLUICE_CHECK(rows >= 0 && cols >= 0);
  return static_cast<size_t>(rows) * static_cast<size_t>(cols) * size_bytes(dtype);
}

}  // namespace sluice::gpu::cuda
