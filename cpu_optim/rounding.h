#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "cpu_optim/state_format.h"
#include "engine/base/float_bits.h"

// How the small state formats round: the definition, one number at a time. Kernels do the same by vectors.
// A number between two that the format has becomes the upper one with the probability that makes the mean
// exact.
namespace sluice::cpu_optim {

// `draw` is uniform below 2^16. A finite number above the largest bf16 may become infinity, as rounding to
// nearest makes it above the middle. Infinity stays; so does a NaN whose lower half is zero, which kernels
// see to.
inline BFloat16 round_stochastically(float value, uint32_t draw) {
  return {static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + draw) >> 16)};
}
inline constexpr uint32_t kNearestBf16 = 0x8000;  // the draw that rounds to nearest, ties up in magnitude

// An 8-bit code is a float of 3 mantissa bits: for the second moment, of v / unit, from 1 on (5 exponent
// bits, no sign); for the first, of |m| / unit + 1 (a sign and 4 exponent bits), the shape of G.711's mu-law:
// steps of unit / 8 near zero. Steps are 6 to 12 % of the number, and piecewise linear, so that rounding can
// keep the mean. From the largest code the first moment reaches down by 2^18.9, the root of the second by
// 2^15.9: a step of noise is never much larger than the root that divides it.
//
// The second moment has no code for 0: what is less than a unit counts as one, and m / sqrt(v) does not blow
// up. Memory that is zero is a record of zeros, of unit 0.
//
// Of a float twice as large the bits are 2.0's or-ed with the code in bits 20 to 27: hence the factors of 2.
inline constexpr int kMantissaShift = 20;  // from 3 bits of mantissa to an fp32's
inline constexpr uint32_t kTwoBits = 0x40000000;
inline constexpr int kFirstMomentOctaves = 15, kSecondMomentOctaves = 31;
inline constexpr uint32_t kNearestCode = 0x80000;  // the draw of encode that rounds to nearest, ties up

// Where the code of a record's element is: such that 16-bit words hold an element of either half, and 32-bit
// lanes an even one and the next, as those of bf16 streams do: codes are moved without shuffles.
constexpr int64_t code_index(int64_t i) {
  const int64_t half = kInt8Block / 2;
  return i % half * 2 + i / half;
}

// A record's scale: the least power of two, from 2^-99 on, under which `bound` has a code; of the second
// moment the least odd power, so that the root of half of it is one, too. NaN if the bound is not finite, or
// above 1.87 * 2^127.
template <int kOctaves>
float record_unit(float bound) {
  constexpr uint32_t kRoundUp = 0x001000ff;  // a mantissa above 1.875 - 2^-15 needs the next power of two
  const auto exponent = static_cast<int32_t>((std::bit_cast<uint32_t>(bound) + kRoundUp) >> 23);
  int32_t unit = exponent - kOctaves < 28 ? 28 : exponent - kOctaves;
  if (kOctaves == kSecondMomentOctaves) unit += unit & 1;  // the bias is odd
  return exponent > 254 ? std::numeric_limits<float>::quiet_NaN()
                        : std::bit_cast<float>(static_cast<uint32_t>(unit) << 23);
}
inline float first_moment_unit(float bound) {
  return record_unit<kFirstMomentOctaves>(bound);
}
inline float second_moment_unit(float bound) {
  return record_unit<kSecondMomentOctaves>(bound);
}
// Of a unit: 2 / unit and 1 / sqrt(unit / 2).
inline float twice_inverse(float unit) {
  return std::bit_cast<float>(0x7f800000u - std::bit_cast<uint32_t>(unit));
}
inline float inverse_root_of_half(float second_unit) {
  return std::bit_cast<float>((191u << 23) - std::bit_cast<uint32_t>(second_unit) / 2);
}

inline float decode_first_moment(uint8_t code, float unit) {
  const uint32_t magnitude = (uint32_t{code} & 0x7f) << kMantissaShift;
  const float value = (std::bit_cast<float>(magnitude | kTwoBits) - 2) * (unit / 2);
  return code < 0x80 ? value : -value;
}
inline float decode_second_moment(uint8_t code, float unit) {
  const uint32_t magnitude = uint32_t{code} << kMantissaShift;
  return std::bit_cast<float>(magnitude | kTwoBits) * (unit / 2);
}

// Rounding leaves noise in v, and the mean of 1 / sqrt(v) is larger by 3/8 of its relative variance. That
// tends to 0.48 q / v for steps of q, whatever beta2, 4 %: so the update would be up to 1.6 % too long. In
// runs of 200 to 500 steps 1.1 % was measured, by what undoes it (training_quality_test).
inline constexpr float kNoiseOfRoot = 1.011f;

// `draw` is uniform below 2^20.
inline uint8_t encode_first_moment(float value, float two_over_unit, uint32_t draw) {
  const bool negative = std::bit_cast<uint32_t>(value) >> 31 != 0;
  const float shifted = (negative ? -value : value) * two_over_unit + 2;
  const uint32_t code = (std::bit_cast<uint32_t>(shifted) + draw) >> kMantissaShift;
  return static_cast<uint8_t>((code & 0x7f) | (negative ? 0x80 : 0));
}
inline uint8_t encode_second_moment(float value, float two_over_unit, uint32_t draw) {
  const float in_half_units = value * two_over_unit;
  const float at_least_two = in_half_units < 2 ? 2.0f : in_half_units;
  return static_cast<uint8_t>((std::bit_cast<uint32_t>(at_least_two) + draw) >> kMantissaShift);
}

}  // namespace sluice::cpu_optim
