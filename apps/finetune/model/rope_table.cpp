#include "apps/finetune/model/rope_table.h"

#include <cmath>
#include <numbers>

namespace sluice::finetune {
namespace {

double stretch_llama3(double frequency, const RopeConfig& rope) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope, int64_t head_dim) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (rope.scaling == RopeScaling::llama3) frequency = stretch_llama3(frequency, rope);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

RopeTable make_rope_table(const RopeConfig& rope, int64_t head_dim, int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(rope, head_dim);
  RopeTable table{.positions = positions, .half_dim = head_dim / 2, .cos = {}, .sin = {}};
  table.cos.reserve(static_cast<size_t>(positions) * frequencies.size());
  table.sin.reserve(table.cos.capacity());
  for (int64_t position = 0; position < positions; ++position) {
    for (const double frequency : frequencies) {
      table.cos.push_back(static_cast<float>(std::cos(static_cast<double>(position) * frequency)));
      table.sin.push_back(static_cast<float>(std::sin(static_cast<double>(position) * frequency)));
    }
  }
  return table;
}

}  // namespace sluice::finetune
