// The formula, the formats that keep one number an element, and their loop, once per instruction set. A
// format is a weight and two moments, each a struct that loads and stores pairs of vectors; the formula is
// not repeated. int8, whose moments come by records, has its own loop in int8-inl.h.

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
#include "cpu_optim/random-inl.h"
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

struct SplitWeight {
  uint16_t* high;
  uint16_t* low;  // of int16

  HWY_INLINE FloatVec load(int64_t i) const { return load_split(high + i, low + i); }
  HWY_INLINE void store_pair(int64_t i, FloatVec first, FloatVec second, const DrawVecs&) const {
    const BitsTag bits;
    store_high_words(round_half_up(first), round_half_up(second), high + i);
    store_low_words(hn::BitCast(bits, first), hn::BitCast(bits, second), low + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const {
    prefetch(high, i);
    prefetch(low, i);
  }
  int64_t unaligned_head() const { return 0; }
  template <class Visit>
  void for_each_stream(const SplitWeight& other, const Visit& visit) const {
    visit(high, other.high);
    visit(low, other.low);
  }
};

struct MasterWeight {
  float* master;
  uint16_t* weight;

  HWY_INLINE FloatVec load(int64_t i) const { return hn::LoadU(FloatTag(), master + i); }
  // The weight alone is written and not read: stored past the cache, it need not be fetched first.
  HWY_INLINE void store_pair(int64_t i, FloatVec first, FloatVec second, const DrawVecs&) const {
    const FloatTag d;
    hn::StoreU(first, d, master + i);
    hn::StoreU(second, d, master + i + static_cast<int64_t>(hn::Lanes(d)));
    stream_high_words(round_half_up(first), round_half_up(second), weight + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(master, i); }
  // Elements before the first that Stream takes.
  int64_t unaligned_head() const {
    const auto vector_bytes = static_cast<uintptr_t>(hn::Lanes(WordTag())) * sizeof(uint16_t);
    const auto past = reinterpret_cast<uintptr_t>(weight) % vector_bytes;
    return past == 0 ? 0 : static_cast<int64_t>((vector_bytes - past) / sizeof(uint16_t));
  }
  template <class Visit>
  void for_each_stream(const MasterWeight& other, const Visit& visit) const {
    visit(master, other.master);
    visit(weight, other.weight);
  }
};

struct RoundedWeight {
  uint16_t* weight;

  HWY_INLINE FloatVec load(int64_t i) const { return load_bf16(weight + i); }
  HWY_INLINE void store_pair(int64_t i, FloatVec first, FloatVec second, const DrawVecs& draws) const {
    store_rounded(first, second, draws.weight, weight + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(weight, i); }
  int64_t unaligned_head() const { return 0; }
  template <class Visit>
  void for_each_stream(const RoundedWeight& other, const Visit& visit) const {
    visit(weight, other.weight);
  }
};

struct Fp32Moments {
  static constexpr bool kStochastic = false;
  float* m;
  float* v;

  HWY_INLINE FloatVec load_m(int64_t i) const { return hn::LoadU(FloatTag(), m + i); }
  HWY_INLINE FloatVec load_v(int64_t i) const { return hn::LoadU(FloatTag(), v + i); }
  HWY_INLINE void store_pair(int64_t i, const Element& first, const Element& second, const DrawVecs&) const {
    const FloatTag d;
    const int64_t next = i + static_cast<int64_t>(hn::Lanes(d));
    hn::StoreU(first.m, d, m + i);
    hn::StoreU(second.m, d, m + next);
    hn::StoreU(first.v, d, v + i);
    hn::StoreU(second.v, d, v + next);
  }
  HWY_INLINE void prefetch_at(int64_t i) const {
    prefetch(m, i);
    prefetch(v, i);
  }
  template <class Visit>
  void for_each_stream(const Fp32Moments& other, const Visit& visit) const {
    visit(m, other.m);
    visit(v, other.v);
  }
};

struct Bf16Moments {
  static constexpr bool kStochastic = true;
  uint16_t* m;
  uint16_t* v;

  HWY_INLINE FloatVec load_m(int64_t i) const { return load_bf16(m + i); }
  HWY_INLINE FloatVec load_v(int64_t i) const { return load_bf16(v + i); }
  HWY_INLINE void store_pair(int64_t i, const Element& first, const Element& second,
                             const DrawVecs& draws) const {
    store_rounded(first.m, second.m, draws.first_moment, m + i);
    store_rounded(first.v, second.v, draws.second_moment, v + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const {
    prefetch(m, i);
    prefetch(v, i);
  }
  template <class Visit>
  void for_each_stream(const Bf16Moments& other, const Visit& visit) const {
    visit(m, other.m);
    visit(v, other.v);
  }
};

template <class Weight, class Moments>
struct Format {
  Weight weight;
  Moments moments;

  HWY_INLINE Element load(int64_t i) const { return {weight.load(i), moments.load_m(i), moments.load_v(i)}; }
  HWY_INLINE void store_pair(int64_t i, const Element& first, const Element& second,
                             const DrawVecs& draws) const {
    weight.store_pair(i, first.w, second.w, draws);
    moments.store_pair(i, first, second, draws);
  }
  HWY_INLINE void prefetch_at(int64_t i) const {
    weight.prefetch_at(i);
    moments.prefetch_at(i);
  }
  template <class Visit>
  void for_each_stream(const Format& other, const Visit& visit) const {
    weight.for_each_stream(other.weight, visit);
    moments.for_each_stream(other.moments, visit);
  }
};

using SplitFormat = Format<SplitWeight, Fp32Moments>;
using SplitBf16Format = Format<SplitWeight, Bf16Moments>;
using Bf16Format = Format<RoundedWeight, Bf16Moments>;
using Fp32Format = Format<MasterWeight, Fp32Moments>;

// One pair of vectors of each stream, zeros where nothing is copied in.
struct alignas(64) PairBuffer {
  float f32[3][kMaxPair] = {};
  uint16_t u16[4][kMaxPair] = {};
  float gradient[kMaxPair] = {};

  void assign(SplitWeight& weight) { weight = {u16[0], u16[1]}; }
  void assign(MasterWeight& weight) { weight = {f32[0], u16[0]}; }
  void assign(RoundedWeight& weight) { weight = {u16[0]}; }
  void assign(Fp32Moments& moments) { moments = {f32[1], f32[2]}; }
  void assign(Bf16Moments& moments) { moments = {u16[2], u16[3]}; }
};

// What all pairs of a range share. `first_element` is the index in the model of the range's first one.
struct RangeStep {
  const AdamStep& step;
  RandomKeys keys;
  uint64_t first_element;
};

template <class Weight, class Moments, class Gradient>
HWY_INLINE void update_pair(const Format<Weight, Moments>& format, const Gradient& gradient, int64_t i,
                            const RangeStep& range) {
  const int64_t next = i + static_cast<int64_t>(hn::Lanes(FloatTag()));
  const Element first = adam(format.load(i), gradient.load(i), range.step);
  const Element second = adam(format.load(next), gradient.load(next), range.step);
  DrawVecs draws{};
  if (Moments::kStochastic) {
    draws = draws_of(hash_of(range.keys, range.first_element + static_cast<uint64_t>(i)));
  }
  format.store_pair(i, first, second, draws);
}

// Fewer elements than a pair of vectors: through padded buffers and the same code, so the bits are the same.
// Draws begin at an element with an even index: an odd one has an unused one before it.
template <class Weight, class Moments, class Gradient>
void update_partial(const Format<Weight, Moments>& format, const Gradient& gradient, int64_t begin,
                    int64_t count, const RangeStep& range) {
  PairBuffer buffer;
  Format<Weight, Moments> padded;
  buffer.assign(padded.weight);
  buffer.assign(padded.moments);
  const uint64_t first_element = range.first_element + static_cast<uint64_t>(begin);
  const int64_t lead = Moments::kStochastic ? static_cast<int64_t>(first_element % 2) : 0;
  format.for_each_stream(padded, [&](const auto* from, auto* to) { copy(from + begin, to + lead, count); });
  auto* padded_gradient =
      reinterpret_cast<std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>*>(
          buffer.gradient);
  copy(gradient.values + begin, padded_gradient + lead, count);
  update_pair(padded, Gradient{padded_gradient}, 0,
              RangeStep{range.step, range.keys, first_element - static_cast<uint64_t>(lead)});
  format.for_each_stream(padded, [&](auto* to, const auto* from) { copy(from + lead, to + begin, count); });
}

template <class Weight, class Moments, class Gradient>
void update_range(const Format<Weight, Moments>& format, const Gradient& gradient, int64_t size,
                  const RangeStep& range) {
  const auto pair = static_cast<int64_t>(2 * hn::Lanes(FloatTag()));
  const auto head =
      Moments::kStochastic ? static_cast<int64_t>(range.first_element % 2) : format.weight.unaligned_head();
  int64_t i = std::min(size, head);
  if (i > 0) update_partial(format, gradient, 0, i, range);
  for (; size - i >= kBlock; i += kBlock) {
    format.prefetch_at(i + kPrefetchDistance);
    gradient.prefetch_at(i + kPrefetchDistance);
    for (int64_t in_block = 0; in_block < kBlock; in_block += pair) {
      update_pair(format, gradient, i + in_block, range);
    }
  }
  for (; size - i >= pair; i += pair) update_pair(format, gradient, i, range);
  if (i < size) update_partial(format, gradient, i, size - i, range);
  hwy::FlushStream();  // streamed stores are visible to whoever is told that the range is done
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
