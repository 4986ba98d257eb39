// The loop of the int8 format, once per instruction set. A record's new units are known beforehand, from the
// largest gradient and the largest codes. So its numbers stay in registers, and in units: as these are powers
// of two, adam's scalars carry them exactly.

#if defined(SLUICE_CPU_OPTIM_INT8_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_INT8_INL_H
#undef SLUICE_CPU_OPTIM_INT8_INL_H
#else
#define SLUICE_CPU_OPTIM_INT8_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu_optim/adamw-inl.h"
#include "cpu_optim/rounding.h"
#include "cpu_optim/state_format.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

// A word of codes is of an element of either half of the record (code_index of rounding.h), and a lane holds
// the words of an even element and the next.

#if HWY_TARGET == HWY_SCALAR  // has no words within lanes

template <int kBits>
HWY_INLINE BitsVec shift_signed_words(BitsVec words) {
  const auto shifted = [](uint32_t word) {
    return uint32_t{static_cast<uint16_t>(static_cast<int16_t>(word) >> kBits)};
  };
  return hn::Set(BitsTag(), shifted(words.raw >> 16) << 16 | shifted(words.raw));
}
HWY_INLINE BitsVec subtract_words(BitsVec words, BitsVec less) {
  const auto left = [](uint32_t word, uint32_t by) { return word < by ? 0 : word - by; };
  return hn::Set(BitsTag(),
                 left(words.raw >> 16, less.raw >> 16) << 16 | left(words.raw & 0xffff, less.raw & 0xffff));
}

#else

template <int kBits>
HWY_INLINE BitsVec shift_signed_words(BitsVec words) {
  const hn::Repartition<int16_t, BitsTag> d;
  return hn::BitCast(BitsTag(), hn::ShiftRight<kBits>(hn::BitCast(d, words)));
}
// Not below 0.
HWY_INLINE BitsVec subtract_words(BitsVec words, BitsVec less) {
  const hn::Repartition<uint16_t, BitsTag> d;
  return hn::BitCast(BitsTag(), hn::SaturatedSub(hn::BitCast(d, words), hn::BitCast(d, less)));
}

#endif

// What the compiler does not know to be constant, and so does not make anew in a loop, which takes more than
// loading it.
HWY_INLINE uint32_t opaque(uint32_t value) {
  asm("" : "+r"(value));
  return value;
}

// The constants of coding.
struct CodeMasks {
  HWY_INLINE CodeMasks()
      : sign(hn::Set(BitsTag(), opaque(0x80000000u))),
        two(hn::Set(BitsTag(), opaque(kTwoBits))),
        two_words(hn::Set(BitsTag(), opaque(kTwoBits | kTwoBits >> 16))),
        sign_words(hn::Set(BitsTag(), opaque(0x80008000u))),
        first_words(hn::Set(BitsTag(), opaque(0x87f087f0u))),
        second(hn::Set(BitsTag(), opaque(0xffu << kMantissaShift))),
        lower20(hn::Set(BitsTag(), opaque(0xfffffu))),
        next_counters(hn::Set(BitsTag(), opaque(counters_step()))) {}

  BitsVec sign, two;
  // Of bf16 words: 2.0, the sign, and the sign with the bits of a first moment's code.
  BitsVec two_words, sign_words, first_words;
  BitsVec second;   // the bits of a second moment's code
  BitsVec lower20;  // of draws
  BitsVec next_counters;
};

HWY_INLINE FloatVec signed_two(FloatVec sign, const CodeMasks& masks) {
  return hn::BitCast(FloatTag(), hn::OrAnd(masks.two, hn::BitCast(BitsTag(), sign), masks.sign));
}

// In half units, what the functions of rounding.h with these names give: of even elements and odd ones of
// half kHalf.
template <int kHalf>
HWY_INLINE FloatPair decode_first_moment(BitsVec codes, const CodeMasks& masks) {
  const FloatTag df;
  if constexpr (kHalf == 0) codes = hn::ShiftLeft<8>(codes);
  const BitsVec words = hn::OrAnd(masks.two_words, shift_signed_words<4>(codes), masks.first_words);
  const FloatVec even = hn::BitCast(df, hn::ShiftLeft<16>(words));
  const FloatVec odd = hn::BitCast(df, upper_words(words));
  return {hn::Sub(even, signed_two(even, masks)), hn::Sub(odd, signed_two(odd, masks))};
}
template <int kHalf>
HWY_INLINE FloatPair decode_second_moment(BitsVec codes, const CodeMasks& masks) {
  const FloatTag df;
  const BitsVec even = hn::ShiftLeft<kMantissaShift - 8 * kHalf>(codes);
  const BitsVec odd = kHalf == 0 ? hn::ShiftLeft<4>(codes) : hn::ShiftRight<4>(codes);
  return {hn::BitCast(df, hn::OrAnd(masks.two, even, masks.second)),
          hn::BitCast(df, hn::OrAnd(masks.two, odd, masks.second))};
}

// Codes from values in half units, by draws below 2^20: in the upper bytes of words, or in bits 4 to 11 of
// them with zeros above. The other bits are anything.
HWY_INLINE BitsVec encode_first_moment(FloatPair values, BitsVec even_draws, BitsVec odd_draws,
                                       const CodeMasks& masks) {
  const BitsTag d;
  const FloatVec even = hn::Add(values.first, signed_two(values.first, masks));
  const FloatVec odd = hn::Add(values.second, signed_two(values.second, masks));
  const BitsVec words =
      Alternating::joined(hn::Add(hn::BitCast(d, even), even_draws), hn::Add(hn::BitCast(d, odd), odd_draws));
  return hn::OrAnd(hn::ShiftLeft<4>(words), words, masks.sign_words);
}
HWY_INLINE BitsVec encode_second_moment(FloatPair values, BitsVec even_draws, BitsVec odd_draws,
                                        const CodeMasks& masks) {
  const BitsTag d;
  const BitsVec words = Alternating::joined(hn::Add(hn::BitCast(d, values.first), even_draws),
                                            hn::Add(hn::BitCast(d, values.second), odd_draws));
  return subtract_words(words, masks.two_words);
}

inline constexpr int64_t kHalfRecord = kInt8Block / 2;
inline constexpr int64_t kRecordLanes = kInt8Block / 4;

// The larger of each byte, or of each 16-bit word.
template <class Part>
HWY_INLINE BitsVec max_of_parts(BitsVec a, BitsVec b) {
#if HWY_TARGET == HWY_SCALAR  // has no lanes within lanes
  Part a_parts[4 / sizeof(Part)], b_parts[4 / sizeof(Part)];
  std::memcpy(a_parts, &a.raw, 4);
  std::memcpy(b_parts, &b.raw, 4);
  for (size_t k = 0; k < 4 / sizeof(Part); ++k) a_parts[k] = std::max(a_parts[k], b_parts[k]);
  std::memcpy(&a.raw, a_parts, 4);
  return a;
#else
  const hn::Repartition<Part, BitsTag> parts;
  return hn::BitCast(BitsTag(), hn::Max(hn::BitCast(parts, a), hn::BitCast(parts, b)));
#endif
}
HWY_INLINE uint32_t largest_lane(BitsVec lanes) {
  return hn::GetLane(hn::MaxOfLanes(BitsTag(), lanes));
}

// The largest magnitude of a record's values; NaN is larger than all.
HWY_INLINE float largest_of(const uint16_t* bf16) {
  const BitsTag d;
  BitsVec largest = hn::Zero(d);
  for (int64_t i = 0; i < kInt8Block; i += 2 * static_cast<int64_t>(hn::Lanes(d))) {
    const BitsVec magnitudes = hn::And(load_lanes_at(bf16 + i), hn::Set(d, 0x7fff7fffu));
    largest = max_of_parts<uint16_t>(largest, magnitudes);
  }
  largest = max_of_parts<uint16_t>(largest, hn::ShiftLeft<16>(largest));
  return std::bit_cast<float>(largest_lane(largest) & 0xffff0000u);
}
HWY_INLINE float largest_of(const float* fp32) {
  const BitsTag d;
  BitsVec largest = hn::Zero(d);
  for (int64_t i = 0; i < kInt8Block; i += static_cast<int64_t>(hn::Lanes(d))) {
    largest = hn::Max(largest, hn::And(load_lanes_at(fp32 + i), hn::Set(d, 0x7fffffffu)));
  }
  return std::bit_cast<float>(largest_lane(largest));
}
HWY_INLINE uint8_t largest_code(const uint8_t* codes, uint32_t mask) {
  const BitsTag d;
  BitsVec largest = hn::Zero(d);
  for (int64_t i = 0; i < kInt8Block; i += 4 * static_cast<int64_t>(hn::Lanes(d))) {
    largest = max_of_parts<uint8_t>(largest, hn::And(load_lanes_at(codes + i), hn::Set(d, mask)));
  }
  largest = max_of_parts<uint8_t>(largest, hn::ShiftLeft<16>(largest));
  largest = max_of_parts<uint8_t>(largest, hn::ShiftLeft<8>(largest));
  return static_cast<uint8_t>(largest_lane(largest) >> 24);
}

HWY_INLINE float load_unit(const uint8_t* record) {
  float unit;
  std::memcpy(&unit, record + kInt8Block, sizeof unit);
  return unit;
}

struct RecordStep {
  RecordUnits units;
  RoundedStep step;  // in half units
};

template <bool kL2, class Gradient>
HWY_INLINE RecordStep step_of_record(const RoundedWeight& weight, const uint8_t* m, const uint8_t* v,
                                     const Gradient& gradient, int64_t begin, const RoundedStep& step) {
  const RecordUnits old{load_unit(m), load_unit(v)};
  const float largest_weight = kL2 ? largest_of(weight.weight + begin) : 0;
  const RecordUnits next =
      next_units(gradient_bound(largest_of(gradient.values + begin), largest_weight, step),
                 cpu_optim::decode_first_moment(largest_code(m, 0x7f7f7f7fu), old.first),
                 cpu_optim::decode_second_moment(largest_code(v, 0xffffffffu), old.second), step);
  return {next, in_half_units(step, old, next)};
}

// What in_half_units changes.
HWY_INLINE RoundedStepVecs in_units(RoundedStepVecs step, const RoundedStep& record) {
  const FloatTag d;
  step.beta1 = hn::Set(d, record.beta1);
  step.gradient_share1 = hn::Set(d, record.gradient_share1);
  step.beta2 = hn::Set(d, record.beta2);
  step.gradient_root2 = hn::Set(d, record.gradient_root2);
  step.root_factor = hn::Set(d, record.root_factor);
  step.epsilon = hn::Set(d, record.epsilon);
  return step;
}

struct CodeVecs {
  BitsVec m, v;
};

// The elements of one half of the record whose codes are in a vector of them; returns the new codes as
// encode_first_moment and encode_second_moment do.
template <bool kL2, int kHalf, class Gradient>
HWY_INLINE CodeVecs update_half(const RoundedWeight& weight, const Gradient& gradient, int64_t i,
                                const CodeVecs& old, const DrawVecs& draws, const RoundedStepVecs& step,
                                const CodeMasks& masks) {
  const FloatPair w = weight.load<Alternating>(i);
  const FloatPair m = decode_first_moment<kHalf>(old.m, masks), v = decode_second_moment<kHalf>(old.v, masks);
  const ElementPair pair = adam<kL2>(ElementPair{{w.first, m.first, v.first}, {w.second, m.second, v.second}},
                                     gradient.template load<Alternating>(i), step);
  weight.store<Alternating>(i, {pair.first.w, pair.second.w}, draws);
  const BitsVec upper = hn::ShiftRight<12>(draws.moments);
  const BitsVec lower = hn::And(draws.moments, masks.lower20);
  return {encode_first_moment({pair.first.m, pair.second.m}, lower, upper, masks),
          encode_second_moment({pair.first.v, pair.second.v}, upper, lower, masks)};
}

HWY_NOINLINE void poison(const RoundedWeight& weight, int64_t begin, uint8_t* m, uint8_t* v) {
  std::fill(weight.weight + begin, weight.weight + begin + kInt8Block, uint16_t{0x7fc0});
  std::fill(m, m + kInt8Block, uint8_t{0});
  std::fill(v, v + kInt8Block, uint8_t{0});
}

// `begin` is of weight and gradient; m and v are records.
template <bool kL2, class Gradient>
HWY_INLINE void update_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v, const Gradient& gradient,
                              int64_t begin, const RecordStep& record,
                              const RangeStep<RoundedStepVecs>& range, const CodeMasks& masks) {
  std::memcpy(m + kInt8Block, &record.units.first, sizeof(float));
  std::memcpy(v + kInt8Block, &record.units.second, sizeof(float));
  if (HWY_UNLIKELY(std::isnan(record.units.first + record.units.second))) return poison(weight, begin, m, v);
  const RoundedStepVecs step = in_units(range.step, record.step);
  BitsVec counter = range.counters_at(begin);
  for (int64_t lane = 0; lane < kRecordLanes; lane += static_cast<int64_t>(hn::Lanes(BitsTag()))) {
    const int64_t i = begin + 2 * lane;
    const CodeVecs old{load_lanes_at(m + 4 * lane), load_lanes_at(v + 4 * lane)};
    const BitsVec hash = hash_of(range.keys, counter), other = second_hash(hash);
    counter = hn::Add(counter, masks.next_counters);
    const CodeVecs first = update_half<kL2, 0>(weight, gradient, i, old, {other, hash}, step, masks);
    const CodeVecs second =
        update_half<kL2, 1>(weight, gradient, i + kHalfRecord, old, {hash, other}, step, masks);
    store_lanes_at(upper_lower_bytes(second.m, hn::ShiftRight<8>(first.m)), m + 4 * lane);
    store_lanes_at(upper_lower_bytes(hn::ShiftLeft<4>(second.v), hn::ShiftRight<4>(first.v)), v + 4 * lane);
  }
}

// The last record may have fewer elements: the rest of it has weight and gradient zero.
template <bool kL2, class Gradient>
HWY_NOINLINE void update_partial_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v,
                                        const Gradient& gradient, int64_t begin, int64_t count,
                                        const RoundedStep& step, RangeStep<RoundedStepVecs> range) {
  using Value = std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>;
  uint16_t padded_weight[kInt8Block] = {};
  Value padded_gradient[kInt8Block] = {};
  copy(weight.weight + begin, padded_weight, count);
  copy(gradient.values + begin, padded_gradient, count);
  range.first_element += static_cast<uint64_t>(begin);
  const CodeMasks masks;
  const RoundedWeight all_weights{padded_weight};
  const Gradient all_gradients{padded_gradient};
  const RecordStep record = step_of_record<kL2>(all_weights, m, v, all_gradients, 0, step);
  update_record<kL2>(all_weights, m, v, all_gradients, 0, record, range, masks);
  copy(padded_weight, weight.weight + begin, count);
}

// The steps of some records are made at once, so that none waits for what takes long to come out of it.
inline constexpr int64_t kBatch = 8;
inline constexpr int64_t kRecordPrefetch = kBatch * kInt8Block;

template <bool kL2, class Gradient>
HWY_NOINLINE void make_steps(const RoundedWeight& weight, const uint8_t* m, const uint8_t* v,
                             const Gradient& gradient, int64_t begin, int64_t count, const RoundedStep& step,
                             RecordStep* steps) {
  for (int64_t k = 0; k < count; ++k) {
    steps[k] = step_of_record<kL2>(weight, m + k * kInt8RecordBytes, v + k * kInt8RecordBytes, gradient,
                                   begin + k * kInt8Block, step);
  }
}

template <bool kL2, class Gradient>
void update_int8(const RoundedWeight weight, uint8_t* m, uint8_t* v, const Gradient gradient, int64_t size,
                 const RoundedStep step, const RangeStep<RoundedStepVecs> range) {
  const CodeMasks masks;
  RecordStep steps[kBatch];
  int64_t begin = 0;
  while (size - begin >= kInt8Block) {
    const int64_t count = std::min(kBatch, (size - begin) / kInt8Block);
    make_steps<kL2>(weight, m, v, gradient, begin, count, step, steps);
    for (int64_t k = 0; k < count; ++k) {
      for (int64_t ahead = kRecordPrefetch; ahead < kRecordPrefetch + kInt8Block; ahead += kBlock) {
        weight.prefetch_at(begin + ahead);
        gradient.prefetch_at(begin + ahead);
      }
      for (int64_t byte = 0; byte < kInt8RecordBytes; byte += 64) {
        prefetch(m, kBatch * kInt8RecordBytes + byte);
        prefetch(v, kBatch * kInt8RecordBytes + byte);
      }
      update_record<kL2>(weight, m, v, gradient, begin, steps[k], range, masks);
      begin += kInt8Block, m += kInt8RecordBytes, v += kInt8RecordBytes;
    }
  }
  if (begin < size) update_partial_record<kL2>(weight, m, v, gradient, begin, size - begin, step, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
