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
// each padded to 256 elements; weights, moments and gradients of the block are all laid out so. Frozen
// parts are only stored. In every tier a block's weights are one range:
//   low (of the state format; may be empty) | high (bf16 weights) | frozen parts
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
    DType storage_dtype = DType::bf16;  // of the high weights where trainable
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
  cpu_optim::StateFormat state_format() const { return state_format_; }
  // Where the high weights begin, and where the frozen parts do: what comes before, padding included.
  size_t low_bytes() const {
    return round_up(cpu_optim::low_bytes(state_format_, logical_elements_), kSectionAlignment);
  }
  size_t trained_bytes() const {
    return low_bytes() + round_up(static_cast<size_t>(logical_elements_) * 2, kSectionAlignment);
  }
  size_t weight_bytes() const { return trained_bytes() + frozen_bytes_; }
  // m and v, each padded.
  size_t moment_bytes() const {
    return 2 * round_up(cpu_optim::moment_bytes(state_format_, logical_elements_), kSectionAlignment);
  }
  // What a lease in `compute_dtype` copies: from this offset of the weights to their end.
  size_t fetch_offset(DType compute_dtype) const { return compute_dtype == DType::bf16 ? low_bytes() : 0; }
  size_t fetch_bytes(DType compute_dtype) const { return weight_bytes() - fetch_offset(compute_dtype); }

 private:
  cpu_optim::StateFormat state_format_;
  std::vector<Part> parts_;
  int64_t logical_elements_ = 0;
  size_t frozen_bytes_ = 0;
};

}  // namespace sluice
