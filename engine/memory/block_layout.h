#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/math.h"
#include "engine/memory/model_spec.h"

namespace sluice {

// Elements that every span in the flat logical index is padded to, so that 8-bit state blocks and shards
// coincide.
inline constexpr int64_t kSpanPadding = 256;
// Bytes; where a range may begin that is transferred to or from a disk.
inline constexpr size_t kSectionAlignment = 4096;

// Where a block's parts lie. Trainable parts have a place in the flat logical index: spans one after another,
// each padded to 256 elements; weight halves, moments and gradients of the block are all laid out so. Frozen
// parts are only stored. In every tier a block's weights are one range:
//   low halves (int16) | high halves (bf16) | frozen parts
// each padded to kSectionAlignment, so that bf16 compute copies from `high` on, fp32 compute copies all of
// it, and the disk can transfer either.
class BlockLayout {
 public:
  struct Part {
    TensorId tensor;
    int64_t row_begin = 0;
    int64_t rows = 0;
    int64_t cols = 0;
    bool trainable = true;
    int group = 0;
    DType storage_dtype = DType::bf16;  // bf16 (high half) where trainable
    int64_t span_begin = 0;             // trainable: first element in the block's logical index
    size_t frozen_offset = 0;           // frozen: byte in the frozen range
    int64_t element_count() const { return rows * cols; }
  };

  BlockLayout(const ModelSpec& model, BlockId block);

  const std::vector<Part>& parts() const { return parts_; }
  const Part& part(int index) const { return parts_.at(static_cast<size_t>(index)); }
  // Elements of the block in the logical index, padding included.
  int64_t logical_elements() const { return logical_elements_; }
  size_t frozen_bytes() const { return frozen_bytes_; }
  // Of the low and of the high halves, padding included: frozen parts begin after twice as many.
  size_t half_bytes() const {
    return round_up(static_cast<size_t>(logical_elements_) * 2, kSectionAlignment);
  }
  size_t weight_bytes() const { return 2 * half_bytes() + frozen_bytes_; }
  // m and v, fp32, each padded.
  size_t moment_bytes() const {
    return 2 * round_up(static_cast<size_t>(logical_elements_) * 4, kSectionAlignment);
  }
  // What a lease in `compute_dtype` copies: from this offset of the weights to their end.
  size_t fetch_offset(DType compute_dtype) const { return compute_dtype == DType::bf16 ? half_bytes() : 0; }
  size_t fetch_bytes(DType compute_dtype) const { return weight_bytes() - fetch_offset(compute_dtype); }

 private:
  std::vector<Part> parts_;
  int64_t logical_elements_ = 0;
  size_t frozen_bytes_ = 0;
};

}  // namespace sluice
