#include "engine/memory/block_layout.h"

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {

BlockLayout::BlockLayout(const ModelSpec& model, BlockId block) : state_format_(model.state_format) {
  constexpr size_t kFrozenAlignment = 512;
  for (const BlockPart& part : model.block(block).parts) {
    const TensorSpec& tensor = model.tensor(part.tensor);
    SLUICE_CHECK(0 <= part.row_begin && part.row_begin <= part.row_end && part.row_end <= tensor.rows,
                 tensor.name);
    Part placed{.tensor = part.tensor,
                .row_begin = part.row_begin,
                .rows = part.row_end - part.row_begin,
                .cols = tensor.cols,
                .trainable = tensor.trainable,
                .group = tensor.group,
                .storage_dtype = tensor.trainable ? DType::bf16 : tensor.storage_dtype};
    if (tensor.trainable) {
      placed.span_begin = logical_elements_;
      logical_elements_ += round_up(placed.element_count(), kSpanPadding);
    } else {
      SLUICE_CHECK(tensor.storage_dtype == DType::bf16 || tensor.storage_dtype == DType::f32, tensor.name);
      placed.frozen_offset = frozen_bytes_;
      frozen_bytes_ += round_up(
          static_cast<size_t>(placed.element_count()) * size_bytes(tensor.storage_dtype), kFrozenAlignment);
    }
    parts_.push_back(placed);
  }
}

}  // namespace sluice
