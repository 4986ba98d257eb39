#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace sluice {

// A bf16 number: the upper 16 bits of an fp32. Storage only; arithmetic is done in fp32.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(uint32_t{value.bits} << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet). What hardware does (vcvtneps2bf16, except that it
// flushes subnormals; this keeps them).
inline BFloat16 to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// An IEEE half. Storage only.
struct Float16 {
  uint16_t bits = 0;
};

inline float to_float(Float16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign != 0 ? -magnitude : magnitude;
}

// Round to nearest, ties to even; overflow gives infinity.
inline Float16 to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x38800000) {  // below the smallest normal half: a multiple of 2^-24
    const float scaled = std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24));
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(scaled))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

// Split format: bits(master) == (uint32(high) << 16) + int32(low), where `high` is the master rounded to the
// nearest bf16, ties up in magnitude (ties to even would need low = +32768). Exact for every fp32, NaN and
// infinity included: near the largest float `high` may read as infinity and a NaN as another one, the join
// restores the bits.
struct SplitFloat {
  BFloat16 high;
  int16_t low = 0;
};

inline SplitFloat split(float master) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  const uint32_t high = (bits + 0x8000) >> 16;
  return {{static_cast<uint16_t>(high)}, static_cast<int16_t>(static_cast<uint16_t>(bits))};
}

inline float join(BFloat16 high, int16_t low) {
  return std::bit_cast<float>((uint32_t{high.bits} << 16) + static_cast<uint32_t>(int32_t{low}));
}

}  // namespace sluice
