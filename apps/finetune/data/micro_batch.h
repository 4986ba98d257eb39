#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::finetune {

// Rows of tokens laid one after another and padded to a multiple of 64 tokens; padding has token 0, position
// 0, no target and weight 0. All vectors but the last three have one entry a token.
struct MicroBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;  // from 0 in each row
  std::vector<int32_t> targets;    // the id that follows, where it is to be learnt; -1: nothing is
  std::vector<float> weights;      // of each target's loss
  std::vector<int32_t>
      document_offsets;                  // row i is tokens [offset i, offset i + 1); the last: padding begins
  std::vector<int64_t> rows;             // index of each row in its data set
  std::vector<std::string> row_sources;  // "file:line" of each row, for messages

  int64_t padded_token_count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t token_count() const { return document_offsets.empty() ? 0 : document_offsets.back(); }
  int64_t target_count() const {
    return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
  }
};

inline constexpr int64_t kTokenPadding = 64;

}  // namespace sluice::finetune
