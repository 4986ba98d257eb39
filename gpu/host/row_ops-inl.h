// Loads, stores, loops and exp that the row ops share, once per instruction set. Included only below
// hwy/foreach_target.h, hence no #pragma once: the guard below is toggled by every target.

#if defined(SLUICE_GPU_HOST_ROW_OPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_GPU_HOST_ROW_OPS_INL_H
#undef SLUICE_GPU_HOST_ROW_OPS_INL_H
#else
#define SLUICE_GPU_HOST_ROW_OPS_INL_H
#endif

#include <cstring>
#include <utility>

#include "engine/base/float_bits.h"
#include "gpu/view.h"
#include "hwy/highway.h"

// Lambdas take over neither the target nor the inlining of the function around them (clang).
#undef SLUICE_SIMD_LAMBDA
#define SLUICE_SIMD_LAMBDA HWY_ATTR __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using Word = hn::Rebind<uint16_t, FloatTag>;
using FloatVec = hn::Vec<FloatTag>;
using BitsVec = hn::Vec<BitsTag>;
inline constexpr int64_t kLanes = hn::MaxLanes(FloatTag());

HWY_INLINE FloatVec set(float value) {
  return hn::Set(FloatTag(), value);
}

// ---- elements as fp32 lanes --------------------------------------------------------------------------

HWY_INLINE FloatVec load(const float* from) {
  return hn::LoadU(FloatTag(), from);
}
HWY_INLINE FloatVec load(const BFloat16* from) {
  const BitsVec wide = hn::PromoteTo(BitsTag(), hn::LoadU(Word(), reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
}
HWY_INLINE FloatVec load(const Float16* from) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  return hn::PromoteTo(FloatTag(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
#else
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = to_float(from[i]);
  return load(lanes);
#endif
}

// to_bfloat16 of engine/base/float_bits.h, in the high word of each lane; the low word is what was rounded
// off.
HWY_INLINE BitsVec bf16_bits(FloatVec value) {
  const BitsTag d;
  const BitsVec bits = hn::BitCast(d, value);
  const BitsVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const BitsVec rounded = hn::Add(hn::Add(bits, hn::Set(d, 0x7fff)), odd);
  const BitsVec quiet = hn::Or(bits, hn::Set(d, 0x400000));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), quiet, rounded);
}

HWY_INLINE void store(FloatVec value, float* to) {
  hn::StoreU(value, FloatTag(), to);
}
HWY_INLINE void store(FloatVec value, BFloat16* to) {
  hn::StoreU(hn::TruncateTo(Word(), hn::ShiftRight<16>(bf16_bits(value))), Word(),
             reinterpret_cast<uint16_t*>(to));
}
HWY_INLINE void store(FloatVec value, Float16* to) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  hn::StoreU(hn::DemoteTo(half, value), half, reinterpret_cast<hwy::float16_t*>(to));
#else
  float lanes[kLanes];
  store(value, lanes);
  for (int64_t i = 0; i < kLanes; ++i) to[i] = to_float16(lanes[i]);
#endif
}

// The value as it reads back after a store as T.
template <class T>
HWY_INLINE FloatVec rounded(FloatVec value) {
  if constexpr (sizeof(T) == sizeof(float)) return value;
  return hn::BitCast(FloatTag(), hn::And(bf16_bits(value), hn::Set(BitsTag(), 0xffff0000u)));
}

// ---- loops -------------------------------------------------------------------------------------------
// Bodies are given an access object: a whole vector, or the last elements of a row, which go through a padded
// buffer (masked 16-bit loads may fault before AVX-512) and then through the same arithmetic.

struct Whole {
  template <class T>
  HWY_INLINE FloatVec load(const T* from) const {
    return HWY_NAMESPACE::load(from);
  }
  template <class T>
  HWY_INLINE void store(FloatVec value, T* to) const {
    HWY_NAMESPACE::store(value, to);
  }
  HWY_INLINE FloatVec keep(FloatVec value, FloatVec) const { return value; }
};

struct Part {
  int64_t count;  // in (0, kLanes)

  template <class T>
  HWY_INLINE FloatVec load(const T* from) const {  // zeros behind the end
    T lanes[kLanes] = {};
    std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(T));
    return HWY_NAMESPACE::load(lanes);
  }
  template <class T>
  HWY_INLINE void store(FloatVec value, T* to) const {
    T lanes[kLanes];
    HWY_NAMESPACE::store(value, lanes);
    std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(T));
  }
  // `other` in the lanes behind the end.
  HWY_INLINE FloatVec keep(FloatVec value, FloatVec other) const {
    return hn::IfThenElse(hn::FirstN(FloatTag(), static_cast<size_t>(count)), value, other);
  }
};

// body(i, access) for vectors that begin at element i.
template <class Body>
HWY_INLINE void for_each_vector(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(i, Whole());
  if (i < end) body(i, Part{end - i});
}

// A reduction along a row in 32 lanes, whatever the vector's width.
inline constexpr int64_t kSumLanes = 32;
inline constexpr int kUnits = static_cast<int>(kSumLanes / kLanes);
static_assert(kSumLanes % kLanes == 0);

struct SumLanes {
  FloatVec unit[kUnits];

  HWY_INLINE explicit SumLanes(float start) {
    for (FloatVec& v : unit) v = set(start);
  }
  HWY_INLINE float sum() const {
    float lanes[kSumLanes];
    spill(lanes);
    for (int64_t step = kSumLanes / 2; step > 0; step /= 2)
      for (int64_t i = 0; i < step; ++i) lanes[i] += lanes[i + step];
    return lanes[0];
  }
  HWY_INLINE float max() const {
    float lanes[kSumLanes];
    spill(lanes);
    for (int64_t step = kSumLanes / 2; step > 0; step /= 2)
      for (int64_t i = 0; i < step; ++i) lanes[i] = lanes[i + step] > lanes[i] ? lanes[i + step] : lanes[i];
    return lanes[0];
  }

 private:
  HWY_INLINE void spill(float* lanes) const {
    for (int u = 0; u < kUnits; ++u) store(unit[u], lanes + u * kLanes);
  }
};

template <int kCount, class Body>
HWY_INLINE void unroll(const Body& body) {  // by recursion: then the unit is a constant, and a register
  if constexpr (kCount > 0) {
    unroll<kCount - 1>(body);
    body(std::integral_constant<int, kCount - 1>());
  }
}

// body(unit, i, access) for vectors that begin at element i; unit is a constant: the vector's place among the
// sum's lanes.
template <class Body>
HWY_INLINE void for_each_unit(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes)
    unroll<kUnits>([&](auto unit) SLUICE_SIMD_LAMBDA { body(unit, i + unit() * kLanes, Whole()); });
  unroll<kUnits>([&](auto unit) SLUICE_SIMD_LAMBDA {
    const int64_t at = i + unit() * kLanes;
    if (at + kLanes <= size)
      body(unit, at, Whole());
    else if (at < size)
      body(unit, at, Part{size - at});
  });
}

// ---- exp ---------------------------------------------------------------------------------------------

// e^x within 2 ulp (tests/gpu/host/row_ops_exp_test.cpp) where that is a normal number; 0 below, the largest
// float above, NaN for NaN. Reduction to |r| <= ln(2) / 2 and polynomial of Cephes' expf (Moshier 1989).
HWY_INLINE FloatVec exp(FloatVec x) {
  const FloatTag d;
  const IntTag di;
  const FloatVec bounded = hn::Min(x, set(88.7228317f));  // ln of the largest float, rounded down
  const FloatVec magic =
      set(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const FloatVec shifted = hn::MulAdd(bounded, set(1.44269504f), magic);
  const FloatVec n = hn::Sub(shifted, magic);
  FloatVec r = hn::NegMulAdd(n, set(0.693359375f), bounded);
  r = hn::NegMulAdd(n, set(-2.12194440e-4f), r);
  FloatVec p = set(1.9875691500e-4f);
  p = hn::MulAdd(p, r, set(1.3981999507e-3f));
  p = hn::MulAdd(p, r, set(8.3334519073e-3f));
  p = hn::MulAdd(p, r, set(4.1665795894e-2f));
  p = hn::MulAdd(p, r, set(1.6666665459e-1f));
  p = hn::MulAdd(p, r, set(5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), set(1.0f));
  // Times 2^n, by its exponent: the bits of `magic` leave on the left.
  const auto power = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  p = hn::BitCast(d, hn::Add(hn::BitCast(di, p), power));
  p = hn::IfThenElse(hn::Lt(x, set(-87.33654f)), set(0), p);  // ln of the smallest normal float
  return hn::IfThenElse(hn::IsNaN(x), x, p);
}

// Calls body(T()) with the type of the elements.
template <class Body>
HWY_INLINE void with_compute_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16)
    body(BFloat16());
  else
    body(float());
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#endif
