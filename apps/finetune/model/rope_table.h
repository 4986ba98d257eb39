#pragma once

#include <cstdint>
#include <vector>

#include "apps/finetune/model/config.h"

namespace sluice::finetune {

// Cosines and sines of every position's angles: cos[p * D/2 + i] = cos(p * inv_freq[i]), inv_freq[i] =
// theta^(-2i/D), stretched as RopeConfig says. Angles in double, rounded to fp32 once.
struct RopeTable {
  int64_t positions = 0;
  int64_t half_dim = 0;    // D / 2
  std::vector<float> cos;  // (positions, D / 2)
  std::vector<float> sin;
};

RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t positions);

// Frequencies alone, for tests. llama3: https://huggingface.co/docs/transformers `rope_type: llama3`
// (modeling_rope_utils.py, _compute_llama3_parameters).
std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace sluice::finetune
