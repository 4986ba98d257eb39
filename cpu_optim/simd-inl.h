// Loads, stores and roundings that the kernels of this folder share, once per instruction set. Included only
// below hwy/foreach_target.h, hence no #pragma once: the guard below is toggled by every target.

#if defined(SLUICE_CPU_OPTIM_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_SIMD_INL_H
#undef SLUICE_CPU_OPTIM_SIMD_INL_H
#else
#define SLUICE_CPU_OPTIM_SIMD_INL_H
#endif

#include "engine/base/float_bits.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Kernels work on pairs of fp32 vectors, so that 16-bit streams are stored as whole vectors.
using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::ScalableTag<uint16_t>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using FloatVec = hn::Vec<FloatTag>;
using BitsVec = hn::Vec<BitsTag>;
inline constexpr size_t kMaxPair = 2 * hn::MaxLanes(FloatTag());

// A bf16 or fp16 stream as its bits.
template <class T>
HWY_INLINE const uint16_t* words(const T* values) {
  static_assert(sizeof(T) == 2);
  return reinterpret_cast<const uint16_t*>(values);
}
template <class T>
HWY_INLINE uint16_t* words(T* values) {
  static_assert(sizeof(T) == 2);
  return reinterpret_cast<uint16_t*>(values);
}

// 16-bit words into 32-bit lanes, zero-extended.
HWY_INLINE BitsVec load_words(const uint16_t* from) {
  const hn::Rebind<uint16_t, FloatTag> half;
  return hn::PromoteTo(BitsTag(), hn::LoadU(half, from));
}

HWY_INLINE FloatVec load_bf16(const uint16_t* from) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(load_words(from)));
}

#if HWY_TARGET == HWY_SCALAR  // has one lane and no word operations

HWY_INLINE void store_low_words(BitsVec first, BitsVec second, uint16_t* to) {
  to[0] = static_cast<uint16_t>(first.raw);
  to[1] = static_cast<uint16_t>(second.raw);
}
HWY_INLINE void store_high_words(BitsVec first, BitsVec second, uint16_t* to) {
  to[0] = static_cast<uint16_t>(first.raw >> 16);
  to[1] = static_cast<uint16_t>(second.raw >> 16);
}
HWY_INLINE void stream_high_words(BitsVec first, BitsVec second, uint16_t* to) {
  store_high_words(first, second, to);
}

#else

// The low (high) words of two vectors, in order.
HWY_INLINE void store_low_words(BitsVec first, BitsVec second, uint16_t* to) {
  const WordTag d;
  hn::StoreU(hn::ConcatEven(d, hn::BitCast(d, second), hn::BitCast(d, first)), d, to);
}
HWY_INLINE void store_high_words(BitsVec first, BitsVec second, uint16_t* to) {
  const WordTag d;
  hn::StoreU(hn::ConcatOdd(d, hn::BitCast(d, second), hn::BitCast(d, first)), d, to);
}
// Past the cache; `to` is aligned to the vector.
HWY_INLINE void stream_high_words(BitsVec first, BitsVec second, uint16_t* to) {
  const WordTag d;
  hn::Stream(hn::ConcatOdd(d, hn::BitCast(d, second), hn::BitCast(d, first)), d, to);
}

#endif

// 32-bit lanes, the pointer being aligned to its element only.
template <class T>
HWY_INLINE BitsVec load_lanes_at(const T* from) {
#if HWY_TARGET == HWY_SCALAR  // reads through a pointer of the lane's type
  uint32_t bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return hn::Set(BitsTag(), bits);
#else
  return hn::LoadU(BitsTag(), reinterpret_cast<const uint32_t*>(from));
#endif
}
template <class T>
HWY_INLINE void store_lanes_at(BitsVec bits, T* to) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t lane = hn::GetLane(bits);
  __builtin_memcpy(to, &lane, sizeof lane);
#else
  hn::StoreU(bits, BitsTag(), reinterpret_cast<uint32_t*>(to));
#endif
}

// join of engine/base/float_bits.h.
HWY_INLINE FloatVec load_split(const uint16_t* high, const uint16_t* low) {
  const hn::RebindToSigned<FloatTag> d32;
  const hn::Rebind<int16_t, FloatTag> half;
  const auto low_words = hn::BitCast(half, hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), low));
  const BitsVec low_bits = hn::BitCast(BitsTag(), hn::PromoteTo(d32, low_words));
  return hn::BitCast(FloatTag(), hn::Add(hn::ShiftLeft<16>(load_words(high)), low_bits));
}

// The bits of a master plus half a bf16 unit: their high word is split's high half (nearest, ties up in
// magnitude).
HWY_INLINE BitsVec round_half_up(FloatVec master) {
  const BitsTag d;
  return hn::Add(hn::BitCast(d, master), hn::Set(d, 0x8000u));
}

// Of each lane the upper 16-bit word from one vector and the lower one from another; of each word, the bytes.
// By a constant mask, which AVX-512 has registers of its own for.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE BitsVec upper_lower_words(BitsVec upper, BitsVec lower) {
  return hn::Set(BitsTag(), (upper.raw & 0xffff0000u) | (lower.raw & 0xffffu));
}
HWY_INLINE BitsVec upper_lower_bytes(BitsVec upper, BitsVec lower) {
  return hn::Set(BitsTag(), (upper.raw & 0xff00ff00u) | (lower.raw & 0xff00ffu));
}
#else
HWY_INLINE BitsVec upper_lower_words(BitsVec upper, BitsVec lower) {
  const WordTag d;
  return hn::BitCast(BitsTag(), hn::OddEven(hn::BitCast(d, upper), hn::BitCast(d, lower)));
}
HWY_INLINE BitsVec upper_lower_bytes(BitsVec upper, BitsVec lower) {
  const hn::Repartition<uint8_t, BitsTag> d;
  return hn::BitCast(BitsTag(), hn::OddEven(hn::BitCast(d, upper), hn::BitCast(d, lower)));
}
#endif
HWY_INLINE BitsVec upper_words(BitsVec bits) {
  return hn::And(bits, hn::Set(BitsTag(), 0xffff0000u));
}
HWY_INLINE BitsVec lower_words(BitsVec bits) {
  return hn::And(bits, hn::Set(BitsTag(), 0xffffu));
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
