#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu_optim/state_format.h"
#include "engine/base/dtype.h"
#include "engine/base/ids.h"

// What the engine knows of a model: tensors, cut into blocks of rows. It does not know what they mean.
namespace sluice {

struct TensorSpec {
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;  // a vector is one row
  // Of a frozen tensor: bf16 or fp32. A trainable one is stored in the state format.
  DType storage_dtype = DType::bf16;
  bool trainable = true;
  int group = 0;  // index into the optimizer's parameter groups
};

struct BlockPart {
  TensorId tensor;
  int64_t row_begin = 0;
  int64_t row_end = 0;
};

// Parts that a matmul uses as one matrix, the rows of the first part on top.
struct LinearUse {
  std::vector<int> parts;
};

// The unit that moves between tiers: leased, updated and written as a whole. Parts in no LinearUse are plain:
// a lease gives them row-major in the compute dtype.
struct BlockSpec {
  std::string name;
  std::vector<BlockPart> parts;
  std::vector<LinearUse> linears;
};

// Every row of every tensor is in exactly one block.
struct ModelSpec {
  std::vector<TensorSpec> tensors;
  std::vector<BlockSpec> blocks;
  // Of all trainable tensors: everything that lays out, moves or updates states asks here.
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;

  const TensorSpec& tensor(TensorId id) const { return tensors.at(static_cast<size_t>(id.value)); }
  const BlockSpec& block(BlockId id) const { return blocks.at(static_cast<size_t>(id.value)); }
};

// Rows a block when a vocabulary-sized tensor is cut. Fixed: it enters reductions, so it must not depend on
// budgets.
inline constexpr int64_t kVocabularyPieceRows = 8192;

}  // namespace sluice
