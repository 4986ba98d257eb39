#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::finetune {

// Rows of tokens laid one after another and padded to a multiple of 64 tokens; padding has token 0, position
// 0, no target and weight 0. All vectors but document_offsets and row_sources have one entry a token.
struct MicroBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;  // from 0 in each row
  std::vector<int32_t> targets;    // the id that follows, where it is to be learnt; -1: nothing to learn here
  std::vector<float> weights;      // of each target's loss
  std::vector<int32_t>
      document_offsets;  // row i is tokens [offset i, offset i + 1); the last is where padding begins
  std::vector<std::string> row_sources;  // "file:line" of each row, for messages
};

inline constexpr int64_t kTokenPadding = 64;

}  // namespace sluice::finetune
