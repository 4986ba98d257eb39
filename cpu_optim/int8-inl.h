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

// A lane of codes is of four elements (code_index of rounding.h): byte k is that of vector k.
template <int kByte>
HWY_INLINE BitsVec to_top_byte(BitsVec codes) {
  if constexpr (kByte == 3) {
    return codes;
  } else {
    return hn::ShiftLeft<24 - 8 * kByte>(codes);
  }
}

// Codes are placed in bits 20 to 27 of a float.
template <int kByte>
HWY_INLINE BitsVec placed_byte(BitsVec codes) {
  constexpr int kShift = kMantissaShift - 8 * kByte;
  if constexpr (kShift >= 0) {
    return hn::ShiftLeft<kShift>(codes);
  } else {
    return hn::ShiftRight<-kShift>(codes);
  }
}
// In half units, what the functions of rounding.h with these names give.
template <int kByte>
HWY_INLINE FloatVec decode_first_moment(BitsVec codes) {
  const BitsTag d;
  const FloatTag df;
  const hn::RebindToSigned<BitsTag> ints;
  const auto signed_codes = hn::BitCast(ints, to_top_byte<kByte>(codes));
  const BitsVec placed = hn::BitCast(d, hn::ShiftRight<24 - kMantissaShift>(signed_codes));
  const BitsVec two = hn::Set(d, kTwoBits);
  const BitsVec shifted = hn::Or(hn::And(placed, hn::Set(d, 0x80000000u | (0x7fu << kMantissaShift))), two);
  const BitsVec offset = hn::Or(hn::And(placed, hn::Set(d, 0x80000000u)), two);
  return hn::Sub(hn::BitCast(df, shifted), hn::BitCast(df, offset));
}
template <int kByte>
HWY_INLINE FloatVec decode_second_moment(BitsVec codes) {
  const BitsTag d;
  const FloatTag df;
  const BitsVec code = hn::And(placed_byte<kByte>(codes), hn::Set(d, 0xffu << kMantissaShift));
  return hn::BitCast(df, hn::Or(code, hn::Set(d, kTwoBits)));
}

// Of even elements (bytes 0 and 2) or odd ones.
template <int kByte>
HWY_INLINE BitsVec draws20(BitsVec draws) {
  if constexpr (kByte % 2 == 0) {
    return hn::ShiftRight<12>(draws);
  } else {
    return hn::And(draws, hn::Set(BitsTag(), 0xfffffu));
  }
}

// Moves a code from the top byte of each lane into byte kByte of `codes`.
template <int kByte>
HWY_INLINE BitsVec with_top_byte(BitsVec codes, BitsVec top) {
  if constexpr (kByte < 3) top = hn::ShiftRight<24 - 8 * kByte>(top);
  return hn::Or(codes, hn::And(top, hn::Set(BitsTag(), 0xffu << (8 * kByte))));
}
// The same from bits 20 to 27.
template <int kByte>
HWY_INLINE BitsVec with_code(BitsVec codes, BitsVec placed) {
  constexpr int kShift = kMantissaShift - 8 * kByte;
  if constexpr (kShift >= 0) {
    placed = hn::ShiftRight<kShift>(placed);
  } else {
    placed = hn::ShiftLeft<-kShift>(placed);
  }
  return hn::Or(codes, hn::And(placed, hn::Set(BitsTag(), 0xffu << (8 * kByte))));
}

// Of values in half units.
template <int kByte>
HWY_INLINE BitsVec encode_first_moment(BitsVec codes, FloatVec value, BitsVec draws) {
  const BitsTag d;
  const FloatTag df;
  const FloatVec shifted = hn::Add(value, hn::CopySignToAbs(hn::Set(df, 2.0f), value));
  const BitsVec placed = hn::Add(hn::BitCast(d, shifted), draws20<kByte>(draws));
  const BitsVec magnitude = hn::ShiftLeft<24 - kMantissaShift>(placed);  // its top bit is 0
  const BitsVec top = hn::OrAnd(magnitude, hn::BitCast(d, value), hn::Set(d, 0x80000000u));
  return with_top_byte<kByte>(codes, top);
}
template <int kByte>
HWY_INLINE BitsVec encode_second_moment(BitsVec codes, FloatVec value, BitsVec draws) {
  const FloatTag df;
  const FloatVec at_least_two = hn::Max(value, hn::Set(df, 2.0f));
  const BitsVec placed = hn::Add(hn::BitCast(BitsTag(), at_least_two), draws20<kByte>(draws));
  return with_code<kByte>(codes, placed);
}

inline constexpr int64_t kHalfRecord = kInt8Block / 2;
inline constexpr int64_t kRecordLanes = kInt8Block / 4;
inline constexpr int64_t kRecordPrefetch = 2 * kInt8Block;  // the next record is read at once

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

// Bounds the magnitude of every element's gradient, as adam scales it.
template <bool kL2, class Gradient>
HWY_INLINE float gradient_bound(const RoundedWeight& weight, const Gradient& gradient, int64_t begin,
                                const AdamStep& step) {
  const float bound = largest_of(gradient.values + begin) * std::abs(step.gradient_scale);
  return kL2 ? bound + step.l2 * largest_of(weight.weight + begin) : bound;
}

struct RecordStep {
  RecordUnits units;
  AdamStep step;  // in half units
};

template <bool kL2, class Gradient>
HWY_INLINE RecordStep step_of_record(const RoundedWeight& weight, const uint8_t* m, const uint8_t* v,
                                     const Gradient& gradient, int64_t begin, const AdamStep& step) {
  const RecordUnits old{load_unit(m), load_unit(v)};
  const RecordUnits next =
      next_units(gradient_bound<kL2>(weight, gradient, begin, step),
                 cpu_optim::decode_first_moment(largest_code(m, 0x7f7f7f7fu), old.first),
                 cpu_optim::decode_second_moment(largest_code(v, 0xffffffffu), old.second), step);
  return {next, in_half_units(step, old, next)};
}

// What in_half_units changes.
HWY_INLINE StepVecs in_units(StepVecs step, const AdamStep& record) {
  const FloatTag d;
  step.beta1 = hn::Set(d, record.beta1);
  step.gradient_share1 = hn::Set(d, record.gradient_share1);
  step.beta2 = hn::Set(d, record.beta2);
  step.gradient_share2 = hn::Set(d, record.gradient_share2);
  step.v_correction = hn::Set(d, record.v_correction);
  step.step_size = hn::Set(d, record.step_size);
  return step;
}

struct CodeVecs {
  BitsVec m, v;
};

// Four vectors hold the elements of a vector of codes: here those of one half of the record.
template <bool kL2, int kHalf, class Gradient>
HWY_INLINE void update_half(const RoundedWeight& weight, const Gradient& gradient, int64_t i,
                            const CodeVecs& old, const RangeStep& range, CodeVecs& codes) {
  constexpr int kEven = 2 * kHalf, kOdd = kEven + 1;
  const FloatPair w = weight.load<Alternating>(i);
  const ElementPair pair =
      adam<kL2>(ElementPair{{w.first, decode_first_moment<kEven>(old.m), decode_second_moment<kEven>(old.v)},
                            {w.second, decode_first_moment<kOdd>(old.m), decode_second_moment<kOdd>(old.v)}},
                gradient.template load<Alternating>(i), range.step);
  const DrawVecs draws = draws_of(hash_of(range.keys, range.first_element + static_cast<uint64_t>(i)));
  weight.store<Alternating>(i, {pair.first.w, pair.second.w}, draws);
  codes.m = encode_first_moment<kEven>(codes.m, pair.first.m, draws.first_moment);
  codes.m = encode_first_moment<kOdd>(codes.m, pair.second.m, draws.first_moment);
  codes.v = encode_second_moment<kEven>(codes.v, pair.first.v, draws.second_moment);
  codes.v = encode_second_moment<kOdd>(codes.v, pair.second.v, draws.second_moment);
}

HWY_NOINLINE void poison(const RoundedWeight& weight, int64_t begin, uint8_t* m, uint8_t* v) {
  std::fill(weight.weight + begin, weight.weight + begin + kInt8Block, uint16_t{0x7fc0});
  std::fill(m, m + kInt8Block, uint8_t{0});
  std::fill(v, v + kInt8Block, uint8_t{0});
}

// `begin` is of weight and gradient; m and v are records.
template <bool kL2, class Gradient>
HWY_INLINE void update_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v, const Gradient& gradient,
                              int64_t begin, const RecordStep& record, const RangeStep& range) {
  std::memcpy(m + kInt8Block, &record.units.first, sizeof(float));
  std::memcpy(v + kInt8Block, &record.units.second, sizeof(float));
  if (HWY_UNLIKELY(std::isnan(record.units.first + record.units.second))) return poison(weight, begin, m, v);
  const RangeStep in_record{in_units(range.step, record.step), range.keys, range.first_element};
  for (int64_t lane = 0; lane < kRecordLanes; lane += static_cast<int64_t>(hn::Lanes(FloatTag()))) {
    const CodeVecs loaded{load_lanes_at(m + 4 * lane), load_lanes_at(v + 4 * lane)};
    CodeVecs codes{hn::Zero(BitsTag()), hn::Zero(BitsTag())};
    update_half<kL2, 0>(weight, gradient, begin + 2 * lane, loaded, in_record, codes);
    update_half<kL2, 1>(weight, gradient, begin + kHalfRecord + 2 * lane, loaded, in_record, codes);
    store_lanes_at(codes.m, m + 4 * lane);
    store_lanes_at(codes.v, v + 4 * lane);
  }
}

// The last record may have fewer elements: the rest of it has weight and gradient zero.
template <bool kL2, class Gradient>
HWY_NOINLINE void update_partial_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v,
                                        const Gradient& gradient, int64_t begin, int64_t count,
                                        const AdamStep& step, RangeStep range) {
  using Value = std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>;
  uint16_t padded_weight[kInt8Block] = {};
  Value padded_gradient[kInt8Block] = {};
  copy(weight.weight + begin, padded_weight, count);
  copy(gradient.values + begin, padded_gradient, count);
  range.first_element += static_cast<uint64_t>(begin);
  const RoundedWeight all_weights{padded_weight};
  const Gradient all_gradients{padded_gradient};
  const RecordStep record = step_of_record<kL2>(all_weights, m, v, all_gradients, 0, step);
  update_record<kL2>(all_weights, m, v, all_gradients, 0, record, range);
  copy(padded_weight, weight.weight + begin, count);
}

template <bool kL2, class Gradient>
void update_int8(const RoundedWeight weight, uint8_t* m, uint8_t* v, const Gradient gradient, int64_t size,
                 const AdamStep step, const RangeStep range) {
  // A record's step takes long to come out: that of the next is begun before the loop over this one.
  RecordStep next;
  if (size >= kInt8Block) next = step_of_record<kL2>(weight, m, v, gradient, 0, step);
  int64_t begin = 0;
  for (; size - begin >= kInt8Block; begin += kInt8Block, m += kInt8RecordBytes, v += kInt8RecordBytes) {
    for (int64_t ahead = begin + kRecordPrefetch; ahead < begin + kRecordPrefetch + kInt8Block;
         ahead += kBlock) {
      weight.prefetch_at(ahead);
      gradient.prefetch_at(ahead);
    }
    for (int64_t byte = 0; byte < kInt8RecordBytes; byte += 64) {
      prefetch(m, 2 * kInt8RecordBytes + byte);
      prefetch(v, 2 * kInt8RecordBytes + byte);
    }
    const RecordStep record = next;
    if (size - begin >= 2 * kInt8Block) {
      next = step_of_record<kL2>(weight, m + kInt8RecordBytes, v + kInt8RecordBytes, gradient,
                                 begin + kInt8Block, step);
    }
    update_record<kL2>(weight, m, v, gradient, begin, record, range);
  }
  if (begin < size) update_partial_record<kL2>(weight, m, v, gradient, begin, size - begin, step, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
