// Loads, stores and roundings that the kernels of this folder share, once per instruction set. Included only
// below hwy/foreach_target.h, hence no #pragma once: the guard below is toggled by every target.

#if defined(SLUICE_CPU_OPTIM_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_SIMD_INL_H
#undef SLUICE_CPU_OPTIM_SIMD_INL_H
#else
#define SLUICE_CPU_OPTIM_SIMD_INL_H
#endif

#include "cpu_optim/rounding.h"
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
HWY_INLINE void store_rounded(FloatVec first, FloatVec second, BitsVec draws, uint16_t* to) {
  to[0] = round_stochastically(first.raw, static_cast<int16_t>(draws.raw)).bits;
  to[1] = round_stochastically(second.raw, static_cast<int16_t>(draws.raw >> 16)).bits;
}
HWY_INLINE void store_codes(BitsVec first, BitsVec second, BitsVec draws, uint8_t* to) {
  const auto code = [](uint32_t steps, uint32_t draw) {
    const bool up = static_cast<int32_t>(steps & 0xffff) + static_cast<int16_t>(draw) >= 0x8000;
    return static_cast<uint8_t>((steps >> 16) + (up ? 1 : 0));
  };
  to[0] = code(first.raw, draws.raw);
  to[1] = code(second.raw, draws.raw >> 16);
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

// The high words of two vectors, one more where low + draw >= 0x8000.
struct RoundedWords {
  hn::Vec<WordTag> down;
  hn::Mask<hn::RebindToSigned<WordTag> > up;
};
HWY_INLINE RoundedWords round_words(BitsVec first, BitsVec second, BitsVec draws) {
  const WordTag d;
  const hn::RebindToSigned<WordTag> ds;
  const auto low = hn::ConcatEven(d, hn::BitCast(d, second), hn::BitCast(d, first));
  const auto threshold = hn::BitCast(ds, hn::Xor(low, hn::Set(d, 0x7fff)));  // 0x7fff - low, as a signed word
  return {hn::ConcatOdd(d, hn::BitCast(d, second), hn::BitCast(d, first)),
          hn::Gt(hn::BitCast(ds, draws), threshold)};
}

// round_stochastically of rounding.h.
HWY_INLINE void store_rounded(FloatVec first, FloatVec second, BitsVec draws, uint16_t* to) {
  const WordTag d;
  const BitsTag bits;
  const hn::RebindToSigned<WordTag> ds;
  const RoundedWords words = round_words(hn::BitCast(bits, first), hn::BitCast(bits, second), draws);
  const auto magnitude = hn::BitCast(ds, hn::And(words.down, hn::Set(d, 0x7fff)));
  const auto up = hn::And(words.up, hn::Lt(magnitude, hn::Set(ds, 0x7f7f)));
  hn::StoreU(hn::Sub(words.down, hn::BitCast(d, hn::VecFromMask(ds, up))), d, to);
}

// The codes of rounding.h from their whole part in the high word and the rest in the low one.
HWY_INLINE void store_codes(BitsVec first, BitsVec second, BitsVec draws, uint8_t* to) {
  const WordTag d;
  const hn::RebindToSigned<WordTag> ds;
  const hn::Rebind<uint8_t, WordTag> bytes;
  const RoundedWords words = round_words(first, second, draws);
  const auto codes = hn::Sub(words.down, hn::BitCast(d, hn::VecFromMask(ds, words.up)));
  hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(ds, codes)), bytes, to);
}

#endif

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

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
