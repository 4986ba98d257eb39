#pragma once

#include <cmath>
#include <limits>

#include "engine/base/dtype.h"

// How far a kernel may be from the reference, derived from dtype and reduction length (Higham, Accuracy and
// Stability of Numerical Algorithms, 2nd ed., sections 2.2 and 3.1). u is the unit roundoff.
namespace sluice::test {

// |actual - expected| <= absolute + relative * |expected|. The default wants equal bits.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
  bool exact() const { return relative == 0 && absolute == 0; }
};

constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;  // 8 significant bits
    case DType::f16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

inline constexpr double kU32 = unit_roundoff(DType::f32);

// Below this, results are subnormal: what is rounded there is not compared.
inline constexpr double kSmallest = std::numeric_limits<float>::min();

// The reference rounds its double once; the kernel's fp32 result is near it and may round to the neighbour:
// one ulp, which is at most 2 u relative.
constexpr double neighbour(DType out) {
  return 2 * unit_roundoff(out);
}

// `steps` fp32 roundings one after the other, without cancellation, stored as `out`.
constexpr Tolerance after_steps(DType out, double steps) {
  return {steps * kU32 + neighbour(out), kSmallest};
}

// The same where terms up to `magnitude` may cancel.
constexpr Tolerance after_cancelling(DType out, double steps, double magnitude) {
  return {neighbour(out), steps * kU32 * magnitude + kSmallest};
}

// Relative error of a sum of `count` fp32 terms in any order, against the sum of their magnitudes: the bound
// of Higham & Mary 2019 (doi 10.1137/18M1226312), lambda sqrt(n) u, at lambda = 6 (fails once in 10^7); the
// worst case, n u, would hide a missing term. One more step for the product that makes the term.
inline double sum_error(int64_t count) {
  return (6 * std::sqrt(static_cast<double>(count)) + 1) * kU32;
}

// A sum of `count` terms, each up to `magnitude`, in fp32, stored as `out`.
inline Tolerance after_sum(DType out, int64_t count, double magnitude) {
  return {neighbour(out), sum_error(count) * static_cast<double>(count) * magnitude + kSmallest};
}

}  // namespace sluice::test
