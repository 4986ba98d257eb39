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

// An 8-bit code is a float of 3 mantissa bits: of x / unit + 1 for the first moment (a sign and 4 exponent
// bits), of x / unit + 15/16 for the second (5 exponent bits, no sign). This is the shape of G.711's mu-law:
// steps of 6 to 12 % of the number, of unit / 8 near zero, and piecewise linear, so that rounding can keep
// the mean. The unit, a power of two, is a record's scale: the least under which its largest number has a
// code. From there the first moment reaches down by 2^18.9, the root of the second by 2^17.9: a step of noise
// is never much larger than the root that divides it.
//
// Code 0 of the second moment means unit / 16 and not 0: a moment that was not 0 does not become it, and
// m / sqrt(v) does not blow up. Only a record of zeros has unit 0. A record with a number that is not finite,
// or above 1.87 * 2^127, has unit NaN: all of its weights are NaN after the next step, which the loss shows.
//
// Of a float twice as large the bits are 2.0's or-ed with the code in bits 20 to 27: hence the factors of 2.
inline constexpr int kMantissaShift = 20;  // from 3 bits of mantissa to an fp32's
inline constexpr uint32_t kTwoBits = 0x40000000;
inline constexpr int kFirstMomentOctaves = 15, kSecondMomentOctaves = 31;
inline constexpr float kTwiceFirstOffset = 2.0f, kTwiceSecondOffset = 1.875f;
inline constexpr uint32_t kNearestCode = 0x80000;  // the draw of encode that rounds to nearest, ties up

// Where the code of a record's element is: such that 32-bit lanes hold two elements of either half, as those
// of bf16 streams do, and codes are moved without shuffles.
constexpr int64_t code_index(int64_t i) {
  const int64_t half = kInt8Block / 2;
  return i % half / 2 * 4 + i / half * 2 + i % 2;
}

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
// 2 / unit, which encoding multiplies by; 0 where there is nothing to encode.
inline float twice_inverse(float unit) {
  return unit > 0 ? 2 / unit : 0;
}

inline float decode_first_moment(uint8_t code, float unit) {
  const uint32_t magnitude = (uint32_t{code} & 0x7f) << kMantissaShift;
  const float value = (std::bit_cast<float>(magnitude | kTwoBits) - kTwiceFirstOffset) * (unit / 2);
  return code < 0x80 ? value : -value;
}
inline float decode_second_moment(uint8_t code, float unit) {
  const uint32_t magnitude = uint32_t{code} << kMantissaShift;
  return (std::bit_cast<float>(magnitude | kTwoBits) - kTwiceSecondOffset) * (unit / 2);
}

// `draw` is uniform below 2^20.
inline uint8_t encode_first_moment(float value, float two_over_unit, uint32_t draw) {
  const bool negative = std::bit_cast<uint32_t>(value) >> 31 != 0;
  const float shifted = (negative ? -value : value) * two_over_unit + kTwiceFirstOffset;
  const uint32_t code = (std::bit_cast<uint32_t>(shifted) + draw) >> kMantissaShift;
  return static_cast<uint8_t>((code & 0x7f) | (negative ? 0x80 : 0));
}
inline uint8_t encode_second_moment(float value, float two_over_unit, uint32_t draw) {
  const float shifted = value * two_over_unit + kTwiceSecondOffset;
  const float at_least_two = shifted < 2 ? 2.0f : shifted;
  return static_cast<uint8_t>((std::bit_cast<uint32_t>(at_least_two) + draw) >> kMantissaShift);
}

}  // namespace sluice::cpu_optim
