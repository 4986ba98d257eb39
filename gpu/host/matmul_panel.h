#pragma once

#include "gpu/host/matmul.h"
#include "gpu/host/panel.h"

namespace sluice::gpu::host {

// Matmul on panels of 48 columns. Depths are summed in blocks of 1536 (a panel block and the rows of a chunk
// then share a 1 MiB L2), the blocks in order.
class PanelMatmul final : public MatmulKernel {
 public:
  explicit PanelMatmul(const PanelKernel& kernel) : kernel_(kernel) {}
  const char* name() const override { return kernel_.name; }
  DType operand() const override { return kernel_.operand; }
  int64_t block_cols() const override { return kWidth; }
  size_t block_bytes(int64_t depth) const override { return panel_bytes(kernel_.operand, depth, kWidth); }
  size_t pack_scratch_bytes(int64_t) const override { return 0; }
  void pack(const PackJob& job) const override;
  size_t product_scratch_bytes(int64_t depth, int64_t max_rows) const override;
  void multiply(const BlockProduct& product) const override;
  size_t left_bytes(int64_t depth) const override;
  LeftOperand pack_left(const View& source, std::byte* out) const override;

 private:
  static constexpr int64_t kWidth = 48;
  static constexpr int64_t kDepthBlock = 1536;
  const PanelKernel& kernel_;
};

}  // namespace sluice::gpu::host
