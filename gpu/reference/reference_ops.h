#pragma once

#include "gpu/ops/ops.h"

namespace sluice::gpu {

// The reference behind the interface of a device: each op becomes one task of a stream. How a task gets into
// a stream is the device's business and injected: Stream::run is for cpu streams only. Thread-safe if that
// is.
class ReferenceOps final : public Ops {
 public:
  explicit ReferenceOps(Enqueue enqueue) : enqueue_(std::move(enqueue)) {}
  void submit(Stream& stream, Op op, Workspace workspace) override;
  size_t workspace_bytes(const Op& op) const override;
  size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout) const override;
  std::string kernel_table_id() const override { return "reference"; }
  DType preferred_compute_dtype() const override { return DType::f32; }

 private:
  Enqueue enqueue_;
};

}  // namespace sluice::gpu
