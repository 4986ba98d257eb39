// The loop of adamw.cpp, once per instruction set: formula, formats, loop. A state format is a struct that
// loads and stores pairs of vectors; a new one is a new struct, and the formula is not repeated.

#if defined(SLUICE_CPU_OPTIM_ADAMW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_ADAMW_INL_H
#undef SLUICE_CPU_OPTIM_ADAMW_INL_H
#else
#define SLUICE_CPU_OPTIM_ADAMW_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu_optim/adamw.h"
#include "cpu_optim/simd-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

struct Element {  // one fp32 vector of each
  FloatVec w, m, v;
};

// The order of operations is the contract in adamw.h. Mul and Add, never MulAdd: targets without a fused one
// would round differently, and the loop waits for memory anyway.
HWY_INLINE Element adam(Element old, FloatVec gradient, const AdamStep& step) {
  const FloatTag d;
  FloatVec g = hn::Mul(gradient, hn::Set(d, step.gradient_scale));
  if (step.l2 != 0) g = hn::Add(g, hn::Mul(hn::Set(d, step.l2), old.w));
  const FloatVec m =
      hn::Add(hn::Mul(hn::Set(d, step.beta1), old.m), hn::Mul(hn::Set(d, step.gradient_share1), g));
  const FloatVec g2 = hn::Mul(hn::Mul(hn::Set(d, step.gradient_share2), g), g);
  const FloatVec v = hn::Add(hn::Mul(hn::Set(d, step.beta2), old.v), g2);
  const FloatVec denominator =
      hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, step.v_correction)), hn::Set(d, step.epsilon));
  const FloatVec decayed = hn::Mul(old.w, hn::Set(d, step.decay));
  const FloatVec w = hn::Sub(decayed, hn::Div(hn::Mul(hn::Set(d, step.step_size), m), denominator));
  return {w, m, v};
}

// Elements between a load and its prefetch. Flat from 256 to 2048 (facts/optimizer.md).
inline constexpr int64_t kPrefetchDistance = 512;
// Elements between two rounds of prefetches: a cache line of 16-bit numbers, two of fp32.
inline constexpr int64_t kBlock = std::max<int64_t>(32, kMaxPair);

// Past the end of a range the address is not the caller's; a prefetch of it does no harm and never faults.
template <class T>
HWY_INLINE void prefetch(const T* stream, int64_t at) {
  const auto address = reinterpret_cast<uintptr_t>(stream) + static_cast<uintptr_t>(at) * sizeof(T);
  for (size_t byte = 0; byte < static_cast<size_t>(kBlock) * sizeof(T); byte += 64) {
    hwy::Prefetch(reinterpret_cast<const char*>(address + byte));
  }
}

template <class T>
void copy(const T* from, T* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

// Gradients and formats name their streams, so that a range's ends are handled once (update_partial).

struct Bf16Gradient {
  const uint16_t* values;

  HWY_INLINE FloatVec load(int64_t i) const { return load_bf16(values + i); }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(values, i); }
};

struct Fp32Gradient {
  const float* values;

  HWY_INLINE FloatVec load(int64_t i) const { return hn::LoadU(FloatTag(), values + i); }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(values, i); }
};

struct SplitFormat {
  uint16_t* high;
  uint16_t* low;  // of int16
  float* m;
  float* v;

  HWY_INLINE Element load(int64_t i) const {
    return {load_split(high + i, low + i), hn::LoadU(FloatTag(), m + i), hn::LoadU(FloatTag(), v + i)};
  }
  HWY_INLINE void store_pair(int64_t i, const Element& first, const Element& second) const {
    const int64_t next = i + static_cast<int64_t>(hn::Lanes(FloatTag()));
    const BitsTag bits;
    store_high_words(round_half_up(first.w), round_half_up(second.w), high + i);
    store_low_words(hn::BitCast(bits, first.w), hn::BitCast(bits, second.w), low + i);
    hn::StoreU(first.m, FloatTag(), m + i);
    hn::StoreU(second.m, FloatTag(), m + next);
    hn::StoreU(first.v, FloatTag(), v + i);
    hn::StoreU(second.v, FloatTag(), v + next);
  }
  HWY_INLINE void prefetch_at(int64_t i) const {
    prefetch(high, i);
    prefetch(low, i);
    prefetch(m, i);
    prefetch(v, i);
  }
  int64_t unaligned_head() const { return 0; }
  template <class Visit>
  void for_each_stream(const SplitFormat& other, const Visit& visit) const {
    visit(high, other.high);
    visit(low, other.low);
    visit(m, other.m);
    visit(v, other.v);
  }
};

struct Fp32Format {
  float* master;
  float* m;
  float* v;
  uint16_t* weight;

  HWY_INLINE Element load(int64_t i) const {
    const FloatTag d;
    return {hn::LoadU(d, master + i), hn::LoadU(d, m + i), hn::LoadU(d, v + i)};
  }
  // The weight alone is written and not read: stored past the cache, it need not be fetched first.
  HWY_INLINE void store_pair(int64_t i, const Element& first, const Element& second) const {
    const FloatTag d;
    const int64_t next = i + static_cast<int64_t>(hn::Lanes(d));
    hn::StoreU(first.w, d, master + i);
    hn::StoreU(second.w, d, master + next);
    hn::StoreU(first.m, d, m + i);
    hn::StoreU(second.m, d, m + next);
    hn::StoreU(first.v, d, v + i);
    hn::StoreU(second.v, d, v + next);
    stream_high_words(round_half_up(first.w), round_half_up(second.w), weight + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const {
    prefetch(master, i);
    prefetch(m, i);
    prefetch(v, i);
  }
  // Elements before the first that Stream takes.
  int64_t unaligned_head() const {
    const auto vector_bytes = static_cast<uintptr_t>(hn::Lanes(WordTag())) * sizeof(uint16_t);
    const auto past = reinterpret_cast<uintptr_t>(weight) % vector_bytes;
    return past == 0 ? 0 : static_cast<int64_t>((vector_bytes - past) / sizeof(uint16_t));
  }
  template <class Visit>
  void for_each_stream(const Fp32Format& other, const Visit& visit) const {
    visit(master, other.master);
    visit(m, other.m);
    visit(v, other.v);
    visit(weight, other.weight);
  }
};

// One pair of vectors of each stream, zeros where nothing is copied in.
struct alignas(64) PairBuffer {
  float f32[3][kMaxPair] = {};
  uint16_t u16[2][kMaxPair] = {};
  float gradient[kMaxPair] = {};

  void assign(SplitFormat& format) { format = {u16[0], u16[1], f32[0], f32[1]}; }
  void assign(Fp32Format& format) { format = {f32[0], f32[1], f32[2], u16[0]}; }
};

template <class Format, class Gradient>
HWY_INLINE void update_pair(const Format& format, const Gradient& gradient, int64_t i, const AdamStep& step) {
  const int64_t next = i + static_cast<int64_t>(hn::Lanes(FloatTag()));
  const Element first = adam(format.load(i), gradient.load(i), step);
  const Element second = adam(format.load(next), gradient.load(next), step);
  format.store_pair(i, first, second);
}

// Fewer elements than a pair of vectors: through padded buffers and the same code, so the bits are the same.
template <class Format, class Gradient>
void update_partial(const Format& format, const Gradient& gradient, int64_t begin, int64_t count,
                    const AdamStep& step) {
  PairBuffer buffer;
  Format padded;
  buffer.assign(padded);
  format.for_each_stream(padded, [&](const auto* from, auto* to) { copy(from + begin, to, count); });
  auto* padded_gradient =
      reinterpret_cast<std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>*>(
          buffer.gradient);
  copy(gradient.values + begin, padded_gradient, count);
  update_pair(padded, Gradient{padded_gradient}, 0, step);
  format.for_each_stream(padded, [&](auto* to, const auto* from) { copy(from, to + begin, count); });
}

template <class Format, class Gradient>
void update_range(const Format& format, const Gradient& gradient, int64_t size, const AdamStep& step) {
  const auto pair = static_cast<int64_t>(2 * hn::Lanes(FloatTag()));
  int64_t i = std::min(size, format.unaligned_head());
  if (i > 0) update_partial(format, gradient, 0, i, step);
  for (; size - i >= kBlock; i += kBlock) {
    format.prefetch_at(i + kPrefetchDistance);
    gradient.prefetch_at(i + kPrefetchDistance);
    for (int64_t in_block = 0; in_block < kBlock; in_block += pair) {
      update_pair(format, gradient, i + in_block, step);
    }
  }
  for (; size - i >= pair; i += pair) update_pair(format, gradient, i, step);
  if (i < size) update_partial(format, gradient, i, size - i, step);
  hwy::FlushStream();  // streamed stores are visible to whoever is told that the range is done
}

template <class Format>
void update_range(const Format& format, FloatView gradient, const AdamStep& step) {
  const int64_t size = gradient.size();
  if (gradient.dtype() == DType::bf16) {
    update_range(format, Bf16Gradient{words(gradient.bf16())}, size, step);
  } else {
    update_range(format, Fp32Gradient{gradient.fp32()}, size, step);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
