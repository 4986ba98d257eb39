#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "engine/base/float_bits.h"

namespace sluice::cpu_optim {

inline constexpr uint64_t kSeed = 20240917;

// Finite fp32 numbers where formats and roundings are known to go wrong: zeros of both signs, subnormals,
// ties of bf16 (low half 0x8000 and its neighbours) at even and odd high halves, the ends of the range.
inline std::vector<float> nasty_finite() {
  std::vector<float> values = {0.0f,
                               1.0f,
                               0x1p-126f,
                               0x1p-149f,
                               0x1.fffffcp-127f,
                               0x1p-24f,
                               0x1p-14f,
                               65504.0f,
                               65519.96f,
                               65520.0f,
                               0x1p-25f,
                               0x1.8p-25f,
                               5.9604645e-8f,
                               std::numeric_limits<float>::max()};
  for (const uint32_t high : {0x0000u, 0x0001u, 0x007fu, 0x3f80u, 0x3f81u, 0x4049u, 0x7f7eu, 0x33d6u}) {
    for (const uint32_t low : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

// Nasty values first, then random signs, mantissas and exponents (2^-40 to 2^8).
inline std::vector<float> nasty_mixture(size_t size, uint64_t seed = kSeed) {
  std::vector<float> values = nasty_finite();
  values.resize(std::min(values.size(), size / 2));
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(-40, 8);
  while (values.size() < size) values.push_back(std::ldexp(mantissa(random), exponent(random)));
  return values;
}

// Another one each step, whose squares are finite.
inline std::vector<float> gradient_of_step(size_t size, int64_t step) {
  std::vector<float> values = nasty_mixture(size, kSeed + static_cast<uint64_t>(step));
  for (float& value : values) {
    if (std::abs(value) > 1e15f) value = std::copysign(1e15f, value);  // its square is finite
  }
  return values;
}

inline std::vector<BFloat16> as_bf16(std::span<const float> values) {
  std::vector<BFloat16> result(values.size());
  for (size_t i = 0; i < values.size(); ++i) result[i] = to_bfloat16(values[i]);
  return result;
}

// Vector widths of every target, one either side, and some more.
inline const std::vector<size_t>& sizes() {
  static const std::vector<size_t> kSizes = [] {
    std::vector<size_t> all = {0, 1, 2, 3, 5, 100, 255, 256, 257, 1000, 4095, 4096, 4097};
    for (const size_t width : {4u, 8u, 16u, 32u, 64u}) all.insert(all.end(), {width - 1, width, width + 1});
    return all;
  }();
  return kSizes;
}

inline uint32_t bits(float value) {
  return std::bit_cast<uint32_t>(value);
}

}  // namespace sluice::cpu_optim
