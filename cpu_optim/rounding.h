#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "engine/base/float_bits.h"

// How the small state formats round: the definition, one number at a time. Kernels do the same by vectors.
//
// A draw is uniform over int16; a number between two that the format has becomes the upper one with the
// probability that makes the mean exact, to within 2^-16 of their distance.
namespace sluice::cpu_optim {

// Of the next two in magnitude. A finite number stays finite (above the largest bf16 there is only down);
// infinity stays infinity and a quiet NaN a NaN.
inline BFloat16 round_stochastically(float value, int16_t draw) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t high = bits >> 16;
  const int32_t low = static_cast<int32_t>(bits & 0xffff);
  const bool up = low + draw >= 0x8000 && (high & 0x7fff) < 0x7f7f;
  return {static_cast<uint16_t>(high + (up ? 1 : 0))};
}

// An 8-bit code is a float of 3 mantissa bits: of x / unit + 1 for the first moment (a sign and 4 exponent
// bits), of x / unit + 15/16 for the second (5 exponent bits, no sign). This is the G.711 mu-law's shape:
// steps of 6 to 12 % of the number, of unit / 8 near zero, and piecewise linear, so that rounding can keep
// the mean. The unit, a power of two, is a record's scale: the least under which its largest number has a
// code. From there the first moment reaches down by 2^18.9, the root of the second by 2^17.9: a step of noise
// is never much larger than the root that divides it.
//
// Code 0 of the second moment means unit / 16 and not 0: a moment that was not 0 does not become it, and
// m / sqrt(v) does not blow up. Only a record of zeros has unit 0. A record with a number that is not finite,
// or above 1.87 * 2^127, has unit NaN: all of its weights are NaN after the next step, which the loss shows.
inline constexpr int kMantissaShift = 20;  // from 3 bits of mantissa to an fp32's
inline constexpr uint32_t kOneBits = 0x3f800000;
inline constexpr int kFirstMomentOctaves = 15, kSecondMomentOctaves = 31;
inline constexpr float kFirstMomentOffset = 1.0f, kSecondMomentOffset = 0.9375f;

// `largest_bits` are those of the largest magnitude in a record.
inline float record_unit(uint32_t largest_bits, int octaves) {
  constexpr uint32_t kRoundUp = 0x001000ff;  // a mantissa above 1.875 - 2^-15 needs the next power of two
  constexpr int32_t kSmallest = -100;        // so that its inverse is finite
  if (largest_bits == 0) return 0;
  const auto exponent = static_cast<int32_t>((largest_bits + kRoundUp) >> 23);
  if (exponent > 254) return std::numeric_limits<float>::quiet_NaN();
  const int32_t unit = exponent - 127 - octaves;
  return std::bit_cast<float>(static_cast<uint32_t>((unit < kSmallest ? kSmallest : unit) + 127) << 23);
}

inline float decode_first_moment(uint8_t code, float unit) {
  const uint32_t magnitude = (uint32_t{code} & 0x7f) << kMantissaShift;
  const float value = (std::bit_cast<float>(magnitude + kOneBits) - kFirstMomentOffset) * unit;
  return code < 0x80 ? value : -value;
}
inline float decode_second_moment(uint8_t code, float unit) {
  const uint32_t magnitude = uint32_t{code} << kMantissaShift;
  return (std::bit_cast<float>(magnitude + kOneBits) - kSecondMomentOffset) * unit;
}

// `inverse_unit` is 0 for unit 0.
inline uint8_t encode(float offset_value, int16_t draw) {
  const uint32_t steps = (std::bit_cast<uint32_t>(offset_value) - kOneBits) >> (kMantissaShift - 16);
  const bool up = static_cast<int32_t>(steps & 0xffff) + draw >= 0x8000;
  return static_cast<uint8_t>((steps >> 16) + (up ? 1 : 0));
}
inline uint8_t encode_first_moment(float value, float inverse_unit, int16_t draw) {
  const bool negative = std::bit_cast<uint32_t>(value) >> 31 != 0;
  const float magnitude = negative ? -value : value;
  return static_cast<uint8_t>(encode(magnitude * inverse_unit + kFirstMomentOffset, draw) |
                              (negative ? 0x80 : 0));
}
inline uint8_t encode_second_moment(float value, float inverse_unit, int16_t draw) {
  const float offset_value = value * inverse_unit + kSecondMomentOffset;
  return encode(offset_value < 1 ? 1.0f : offset_value, draw);
}

}  // namespace sluice::cpu_optim
