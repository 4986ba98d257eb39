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
#include "cpu_optim/fused-inl.h"
#include "cpu_optim/random-inl.h"
#include "cpu_optim/rounded_step.h"
#include "cpu_optim/simd-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

struct Element {  // one fp32 vector of each
  FloatVec w, m, v;
};
struct ElementPair {
  Element first, second;
};
struct FloatPair {
  FloatVec first, second;
};

// AdamStep in registers; a memory operand would be loaded anew after every store.
struct StepVecs {
  explicit HWY_INLINE StepVecs(const AdamStep& step)
      : gradient_scale(hn::Set(FloatTag(), step.gradient_scale)),
        l2(hn::Set(FloatTag(), step.l2)),
        beta1(hn::Set(FloatTag(), step.beta1)),
        gradient_share1(hn::Set(FloatTag(), step.gradient_share1)),
        beta2(hn::Set(FloatTag(), step.beta2)),
        gradient_share2(hn::Set(FloatTag(), step.gradient_share2)),
        v_correction(hn::Set(FloatTag(), step.v_correction)),
        epsilon(hn::Set(FloatTag(), step.epsilon)),
        decay(hn::Set(FloatTag(), step.decay)),
        step_size(hn::Set(FloatTag(), step.step_size)) {}

  FloatVec gradient_scale, l2, beta1, gradient_share1, beta2, gradient_share2, v_correction, epsilon, decay,
      step_size;
};

// The order of operations is the contract in adamw.h. Mul and Add, never MulAdd: targets without a fused one
// would round differently.
template <bool kL2>
HWY_INLINE Element adam(Element old, FloatVec gradient, const StepVecs& step) {
  FloatVec g = hn::Mul(gradient, step.gradient_scale);
  if constexpr (kL2) g = hn::Add(g, hn::Mul(step.l2, old.w));
  const FloatVec m = hn::Add(hn::Mul(step.beta1, old.m), hn::Mul(step.gradient_share1, g));
  const FloatVec g2 = hn::Mul(hn::Mul(step.gradient_share2, g), g);
  const FloatVec v = hn::Add(hn::Mul(step.beta2, old.v), g2);
  const FloatVec denominator = hn::Add(hn::Mul(hn::Sqrt(v), step.v_correction), step.epsilon);
  const FloatVec decayed = hn::Mul(old.w, step.decay);
  const FloatVec w = hn::Sub(decayed, hn::Div(hn::Mul(step.step_size, m), denominator));
  return {w, m, v};
}

// RoundedStep in registers.
struct RoundedStepVecs {
  explicit HWY_INLINE RoundedStepVecs(const RoundedStep& step)
      : gradient_scale(hn::Set(FloatTag(), step.gradient_scale)),
        l2(hn::Set(FloatTag(), step.l2)),
        beta1(hn::Set(FloatTag(), step.beta1)),
        gradient_share1(hn::Set(FloatTag(), step.gradient_share1)),
        beta2(hn::Set(FloatTag(), step.beta2)),
        gradient_root2(hn::Set(FloatTag(), step.gradient_root2)),
        root_factor(hn::Set(FloatTag(), step.root_factor)),
        epsilon(hn::Set(FloatTag(), step.epsilon)),
        decay(hn::Set(FloatTag(), step.decay)) {}

  FloatVec gradient_scale, l2, beta1, gradient_share1, beta2, gradient_root2, root_factor, epsilon, decay;
};

// rounded_adam of rounded_step.h.
template <bool kL2>
HWY_INLINE Element adam(Element old, FloatVec gradient, const RoundedStepVecs& step) {
  FloatVec g = gradient;
  if constexpr (kL2) g = fused(step.l2, old.w, hn::Mul(step.gradient_scale, gradient));
  const FloatVec m = fused(step.beta1, old.m, hn::Mul(step.gradient_share1, g));
  const FloatVec root = hn::Mul(step.gradient_root2, g);
  const FloatVec v = fused(root, root, hn::Mul(step.beta2, old.v));
  const FloatVec denominator = fused(step.root_factor, hn::Sqrt(v), step.epsilon);
  return {fused(step.decay, old.w, hn::Div(m, denominator)), m, v};
}

template <bool kL2, class Step>
HWY_INLINE ElementPair adam(const ElementPair& old, FloatPair gradient, const Step& step) {
  return {adam<kL2>(old.first, gradient.first, step), adam<kL2>(old.second, gradient.second, step)};
}

// Elements between a load and its prefetch. With fp32 moments 256 is 2 % slower, 512 6 to 10 %
// (bench_optimizer on two Zen 4 cores; an older measurement was flat from 256 on, facts/optimizer.md).
inline constexpr int64_t kPrefetchDistance = 128;
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

// How a pair of vectors holds twice as many elements. Where there are fp32 streams one vector follows the
// other.
struct Consecutive {
  static HWY_INLINE FloatPair load_bf16(const uint16_t* from) {
    const auto lanes = hn::Lanes(FloatTag());
    return {HWY_NAMESPACE::load_bf16(from), HWY_NAMESPACE::load_bf16(from + lanes)};
  }
  static HWY_INLINE FloatPair load_fp32(const float* from) {
    const FloatTag d;
    return {hn::LoadU(d, from), hn::LoadU(d, from + hn::Lanes(d))};
  }
  static HWY_INLINE FloatPair load_split(const uint16_t* high, const uint16_t* low) {
    const auto lanes = hn::Lanes(FloatTag());
    return {HWY_NAMESPACE::load_split(high, low), HWY_NAMESPACE::load_split(high + lanes, low + lanes)};
  }
  static HWY_INLINE void store_split(FloatPair masters, uint16_t* high, uint16_t* low) {
    const BitsTag d;
    store_high_words(round_half_up(masters.first), round_half_up(masters.second), high);
    store_low_words(hn::BitCast(d, masters.first), hn::BitCast(d, masters.second), low);
  }
};

// Where all streams have 16 bits, the even elements are in one vector and the odd ones in the other: as a
// 32-bit lane in memory has them, so that nothing is shuffled.
struct Alternating {
  // The high words of two vectors.
  static HWY_INLINE BitsVec joined(BitsVec even, BitsVec odd) {
    return upper_lower_words(odd, hn::ShiftRight<16>(even));
  }
  static HWY_INLINE FloatPair load_bf16(const uint16_t* from) {
    const FloatTag d;
    const BitsVec bits = load_lanes_at(from);
    return {hn::BitCast(d, hn::ShiftLeft<16>(bits)), hn::BitCast(d, upper_words(bits))};
  }
  // A NaN loses its payload, to whose lower half a draw would be added.
  static HWY_INLINE FloatPair load_fp32(const float* from) {
    FloatPair pair;
    hn::LoadInterleaved2(FloatTag(), from, pair.first, pair.second);
    return {plain_nan(pair.first), plain_nan(pair.second)};
  }
  static HWY_INLINE FloatVec plain_nan(FloatVec value) {
    const FloatTag d;
    return hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, hn::Set(BitsTag(), 0x7fc00000u)), value);
  }
  static HWY_INLINE FloatPair load_split(const uint16_t* high, const uint16_t* low) {
    const FloatTag d;
    const BitsTag bits;
    const hn::RebindToSigned<BitsTag> ints;
    const BitsVec high_words = load_lanes_at(high);
    const auto low_words = hn::BitCast(ints, load_lanes_at(low));
    const BitsVec even_low = hn::BitCast(bits, hn::ShiftRight<16>(hn::ShiftLeft<16>(low_words)));
    const BitsVec odd_low = hn::BitCast(bits, hn::ShiftRight<16>(low_words));
    return {hn::BitCast(d, hn::Add(hn::ShiftLeft<16>(high_words), even_low)),
            hn::BitCast(d, hn::Add(upper_words(high_words), odd_low))};
  }
  static HWY_INLINE void store_split(FloatPair masters, uint16_t* high, uint16_t* low) {
    const BitsTag d;
    const BitsVec even = hn::BitCast(d, masters.first), odd = hn::BitCast(d, masters.second);
    store_lanes_at(joined(round_half_up(masters.first), round_half_up(masters.second)), high);
    store_lanes_at(upper_lower_words(hn::ShiftLeft<16>(odd), even), low);
  }
  // round_stochastically of rounding.h, by draws below 2^16.
  static HWY_INLINE void store_rounded(FloatPair values, BitsVec even_draws, BitsVec odd_draws,
                                       uint16_t* to) {
    const BitsTag d;
    const BitsVec even = hn::Add(hn::BitCast(d, values.first), even_draws);
    const BitsVec odd = hn::Add(hn::BitCast(d, values.second), odd_draws);
    store_lanes_at(joined(even, odd), to);
  }
};

HWY_INLINE BitsVec upper_draws(BitsVec hash) {
  return hn::ShiftRight<16>(hash);
}
HWY_INLINE BitsVec lower_draws(BitsVec hash) {
  return hn::And(hash, hn::Set(BitsTag(), 0xffffu));
}

// Gradients and formats name their streams, so that a range's ends are handled once (update_partial).

struct Bf16Gradient {
  const uint16_t* values;

  template <class Order>
  HWY_INLINE FloatPair load(int64_t i) const {
    return Order::load_bf16(values + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(values, i); }
};

struct Fp32Gradient {
  const float* values;

  template <class Order>
  HWY_INLINE FloatPair load(int64_t i) const {
    return Order::load_fp32(values + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(values, i); }
};

struct SplitWeight {
  uint16_t* high;
  uint16_t* low;  // of int16

  template <class Order>
  HWY_INLINE FloatPair load(int64_t i) const {
    return Order::load_split(high + i, low + i);
  }
  template <class Order>
  HWY_INLINE void store(int64_t i, FloatPair weights, const DrawVecs&) const {
    Order::store_split(weights, high + i, low + i);
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
  uint16_t* weight;  // a copy, rounded as split rounds it

  template <class Order>
  HWY_INLINE FloatPair load(int64_t i) const {
    return Order::load_fp32(master + i);
  }
  // The weight alone is written and not read: stored past the cache, it need not be fetched first.
  template <class Order>
  HWY_INLINE void store(int64_t i, FloatPair weights, const DrawVecs&) const {
    const FloatTag d;
    hn::StoreU(weights.first, d, master + i);
    hn::StoreU(weights.second, d, master + i + static_cast<int64_t>(hn::Lanes(d)));
    stream_high_words(round_half_up(weights.first), round_half_up(weights.second), weight + i);
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

// Without a copy.
struct BareMaster {
  float* master;

  template <class Order>
  HWY_INLINE FloatPair load(int64_t i) const {
    return Order::load_fp32(master + i);
  }
  template <class Order>
  HWY_INLINE void store(int64_t i, FloatPair weights, const DrawVecs&) const {
    const FloatTag d;
    hn::StoreU(weights.first, d, master + i);
    hn::StoreU(weights.second, d, master + i + static_cast<int64_t>(hn::Lanes(d)));
  }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(master, i); }
  int64_t unaligned_head() const { return 0; }
  template <class Visit>
  void for_each_stream(const BareMaster& other, const Visit& visit) const {
    visit(master, other.master);
  }
};

struct RoundedWeight {
  uint16_t* weight;

  template <class Order>
  HWY_INLINE FloatPair load(int64_t i) const {
    return Order::load_bf16(weight + i);
  }
  template <class Order>
  HWY_INLINE void store(int64_t i, FloatPair weights, const DrawVecs& draws) const {
    Order::store_rounded(weights, upper_draws(draws.weight), lower_draws(draws.weight), weight + i);
  }
  HWY_INLINE void prefetch_at(int64_t i) const { prefetch(weight, i); }
  int64_t unaligned_head() const { return 0; }
  template <class Visit>
  void for_each_stream(const RoundedWeight& other, const Visit& visit) const {
    visit(weight, other.weight);
  }
};

struct Fp32Moments {
  using Order = Consecutive;
  using Step = StepVecs;
  static constexpr bool kStochastic = false;
  float* m;
  float* v;

  HWY_INLINE FloatPair load_m(int64_t i) const { return Order::load_fp32(m + i); }
  HWY_INLINE FloatPair load_v(int64_t i) const { return Order::load_fp32(v + i); }
  HWY_INLINE void store(int64_t i, const ElementPair& pair, const DrawVecs&) const {
    const FloatTag d;
    const int64_t next = i + static_cast<int64_t>(hn::Lanes(d));
    hn::StoreU(pair.first.m, d, m + i);
    hn::StoreU(pair.second.m, d, m + next);
    hn::StoreU(pair.first.v, d, v + i);
    hn::StoreU(pair.second.v, d, v + next);
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
  using Order = Alternating;
  using Step = RoundedStepVecs;
  static constexpr bool kStochastic = true;
  uint16_t* m;
  uint16_t* v;

  HWY_INLINE FloatPair load_m(int64_t i) const { return Order::load_bf16(m + i); }
  HWY_INLINE FloatPair load_v(int64_t i) const { return Order::load_bf16(v + i); }
  HWY_INLINE void store(int64_t i, const ElementPair& pair, const DrawVecs& draws) const {
    const BitsVec upper = upper_draws(draws.moments), lower = lower_draws(draws.moments);
    Order::store_rounded({pair.first.m, pair.second.m}, lower, upper, m + i);
    Order::store_rounded({pair.first.v, pair.second.v}, upper, lower, v + i);
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
  using Order = typename Moments::Order;
  Weight weight;
  Moments moments;

  HWY_INLINE ElementPair load(int64_t i) const {
    const FloatPair w = weight.template load<Order>(i);
    const FloatPair m = moments.load_m(i), v = moments.load_v(i);
    return {{w.first, m.first, v.first}, {w.second, m.second, v.second}};
  }
  HWY_INLINE void store(int64_t i, const ElementPair& pair, const DrawVecs& draws) const {
    weight.template store<Order>(i, {pair.first.w, pair.second.w}, draws);
    moments.store(i, pair, draws);
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
using BareFp32Format = Format<BareMaster, Fp32Moments>;

// One pair of vectors of each stream, zeros where nothing is copied in.
struct alignas(64) PairBuffer {
  float f32[3][kMaxPair] = {};
  uint16_t u16[4][kMaxPair] = {};
  float gradient[kMaxPair] = {};

  void assign(SplitWeight& weight) { weight = {u16[0], u16[1]}; }
  void assign(MasterWeight& weight) { weight = {f32[0], u16[0]}; }
  void assign(BareMaster& weight) { weight = {f32[0]}; }
  void assign(RoundedWeight& weight) { weight = {u16[0]}; }
  void assign(Fp32Moments& moments) { moments = {f32[1], f32[2]}; }
  void assign(Bf16Moments& moments) { moments = {u16[2], u16[3]}; }
};

// What all pairs of a range share. `first_element` is the index in the model of the range's first one.
template <class Step>
struct RangeStep {
  Step step;
  RandomKeys keys;
  uint64_t first_element;

  HWY_INLINE BitsVec counters_at(int64_t i) const {
    return counters(keys, first_element + static_cast<uint64_t>(i));
  }
};

// `counter` is counters_at(i).
template <bool kL2, class Weight, class Moments, class Gradient>
HWY_INLINE void update_pair(const Format<Weight, Moments>& format, const Gradient& gradient, int64_t i,
                            BitsVec counter, const RangeStep<typename Moments::Step>& range) {
  using Order = typename Moments::Order;
  const ElementPair pair = adam<kL2>(format.load(i), gradient.template load<Order>(i), range.step);
  DrawVecs draws{};
  if constexpr (Moments::kStochastic) draws = draws_of(range.keys, counter);
  format.store(i, pair, draws);
}

// Fewer elements than a pair of vectors: through padded buffers and the same code, so the bits are the same.
// Draws begin at a multiple of kNeighbours elements: another has unused ones before it.
template <bool kL2, class Weight, class Moments, class Gradient>
HWY_NOINLINE void update_partial(const Format<Weight, Moments>& format, const Gradient& gradient,
                                 int64_t begin, int64_t count,
                                 const RangeStep<typename Moments::Step>& range) {
  PairBuffer buffer;
  Format<Weight, Moments> padded;
  buffer.assign(padded.weight);
  buffer.assign(padded.moments);
  const uint64_t first_element = range.first_element + static_cast<uint64_t>(begin);
  const int64_t lead = Moments::kStochastic ? static_cast<int64_t>(first_element % kNeighbours) : 0;
  format.for_each_stream(padded, [&](const auto* from, auto* to) { copy(from + begin, to + lead, count); });
  auto* padded_gradient =
      reinterpret_cast<std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>*>(
          buffer.gradient);
  copy(gradient.values + begin, padded_gradient + lead, count);
  update_pair<kL2>(padded, Gradient{padded_gradient}, 0, range.counters_at(begin - lead), range);
  format.for_each_stream(padded, [&](auto* to, const auto* from) { copy(from + lead, to + begin, count); });
}

// Arguments by value: the loop's stores cannot change what has no address.
template <bool kL2, class Weight, class Moments, class Gradient>
void update_range(const Format<Weight, Moments> format, const Gradient gradient, int64_t size,
                  const RangeStep<typename Moments::Step> range) {
  const BitsTag d;
  const auto pair = static_cast<int64_t>(2 * hn::Lanes(d));
  const int64_t past = static_cast<int64_t>(range.first_element % kNeighbours);
  const int64_t head =
      Moments::kStochastic ? (past == 0 ? 0 : kNeighbours - past) : format.weight.unaligned_head();
  int64_t i = std::min(size, head);
  if (i > 0) update_partial<kL2>(format, gradient, 0, i, range);
  BitsVec counter = range.counters_at(i);
  const BitsVec next_counters = hn::Set(d, counters_step());
  for (; size - i >= kBlock; i += kBlock) {
    format.prefetch_at(i + kPrefetchDistance);
    gradient.prefetch_at(i + kPrefetchDistance);
    for (int64_t in_block = 0; in_block < kBlock; in_block += pair) {
      update_pair<kL2>(format, gradient, i + in_block, counter, range);
      counter = hn::Add(counter, next_counters);
    }
  }
  for (; size - i >= pair; i += pair) {
    update_pair<kL2>(format, gradient, i, counter, range);
    counter = hn::Add(counter, next_counters);
  }
  if (i < size) update_partial<kL2>(format, gradient, i, size - i, range);
  hwy::FlushStream();  // streamed stores are visible to whoever is told that the range is done
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
