// The loop of the int8 format, once per instruction set: a record at a time, twice through the first cache.

#if defined(SLUICE_CPU_OPTIM_INT8_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_INT8_INL_H
#undef SLUICE_CPU_OPTIM_INT8_INL_H
#else
#define SLUICE_CPU_OPTIM_INT8_INL_H
#endif

#include <algorithm>
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
  if constexpr (kByte == 3) return codes;
  return hn::ShiftLeft<24 - 8 * kByte>(codes);
}

// The functions of rounding.h that have these names.
template <int kByte>
HWY_INLINE FloatVec decode_first_moment(BitsVec codes, FloatVec half_unit) {
  const BitsTag d;
  const FloatTag df;
  const hn::RebindToSigned<BitsTag> ints;
  const auto signed_codes = hn::BitCast(ints, to_top_byte<kByte>(codes));
  const BitsVec placed = hn::BitCast(d, hn::ShiftRight<24 - kMantissaShift>(signed_codes));
  const BitsVec two = hn::Set(d, kTwoBits);
  const BitsVec shifted = hn::Or(hn::And(placed, hn::Set(d, 0x80000000u | (0x7fu << kMantissaShift))), two);
  const BitsVec offset = hn::Or(hn::And(placed, hn::Set(d, 0x80000000u)), two);
  return hn::Mul(hn::Sub(hn::BitCast(df, shifted), hn::BitCast(df, offset)), half_unit);
}
template <int kByte>
HWY_INLINE FloatVec decode_second_moment(BitsVec codes, FloatVec half_unit) {
  const BitsTag d;
  const FloatTag df;
  constexpr int kShift = kMantissaShift - 8 * kByte;
  BitsVec placed;
  if constexpr (kShift >= 0) {
    placed = hn::ShiftLeft<kShift>(codes);
  } else {
    placed = hn::ShiftRight<-kShift>(codes);
  }
  const BitsVec shifted = hn::Or(hn::And(placed, hn::Set(d, 0xffu << kMantissaShift)), hn::Set(d, kTwoBits));
  return hn::Mul(hn::Sub(hn::BitCast(df, shifted), hn::Set(df, kTwiceSecondOffset)), half_unit);
}

// Puts a code from bits 20 to 27 into its byte of the lane.
template <int kByte>
HWY_INLINE BitsVec with_code(BitsVec codes, BitsVec placed, uint32_t mask) {
  constexpr int kShift = kMantissaShift - 8 * kByte;
  BitsVec byte;
  if constexpr (kShift >= 0) {
    byte = hn::ShiftRight<kShift>(placed);
  } else {
    byte = hn::ShiftLeft<-kShift>(placed);
  }
  return hn::Or(codes, hn::And(byte, hn::Set(BitsTag(), mask << (8 * kByte))));
}

// Of even elements (bytes 0 and 2) or odd ones.
template <int kByte>
HWY_INLINE BitsVec draws20(BitsVec draws) {
  if constexpr (kByte % 2 == 0) return hn::ShiftRight<12>(draws);
  return hn::And(draws, hn::Set(BitsTag(), 0xfffffu));
}

template <int kByte>
HWY_INLINE BitsVec encode_first_moment(BitsVec codes, FloatVec value, FloatVec two_over_unit, BitsVec draws) {
  const BitsTag d;
  const FloatTag df;
  const BitsVec sign = hn::And(hn::BitCast(d, value), hn::Set(d, 0x80000000u));
  const FloatVec offset = hn::BitCast(df, hn::Or(sign, hn::Set(d, kTwoBits)));
  const FloatVec shifted = hn::Add(hn::Mul(value, two_over_unit), offset);
  const BitsVec placed = hn::Add(hn::BitCast(d, shifted), draws20<kByte>(draws));
  codes = with_code<kByte>(codes, placed, 0x7f);
  const BitsVec sign_byte = kByte == 3 ? sign : hn::ShiftRight<24 - 8 * kByte>(sign);
  return hn::Or(codes, sign_byte);
}
template <int kByte>
HWY_INLINE BitsVec encode_second_moment(BitsVec codes, FloatVec value, FloatVec two_over_unit,
                                        BitsVec draws) {
  const FloatTag df;
  const FloatVec shifted = hn::Add(hn::Mul(value, two_over_unit), hn::Set(df, kTwiceSecondOffset));
  const FloatVec at_least_two = hn::Max(shifted, hn::Set(df, 2.0f));
  const BitsVec placed = hn::Add(hn::BitCast(BitsTag(), at_least_two), draws20<kByte>(draws));
  return with_code<kByte>(codes, placed, 0xff);
}

inline constexpr int64_t kHalfRecord = kInt8Block / 2;
inline constexpr int64_t kRecordLanes = kInt8Block / 4;

// What a record is between decoding and encoding, by the byte of the code.
struct alignas(64) RecordBuffer {
  float m[4][kRecordLanes];
  float v[4][kRecordLanes];
  uint32_t hashes[2][kRecordLanes];
};

struct Largest {
  BitsVec m, v;
};

HWY_INLINE float load_unit(const uint8_t* record) {
  float unit;
  std::memcpy(&unit, record + kInt8Block, sizeof unit);
  return unit;
}

// Sets the unit of a record by its largest magnitude and returns 2 / unit. Numbers that are not finite become
// zeros: what NaN is in bits depends on the instruction set.
HWY_INLINE float store_unit(BitsVec largest, int octaves, float (&moment)[4][kRecordLanes], uint8_t* record) {
  const float unit = record_unit(hn::GetLane(hn::MaxOfLanes(BitsTag(), largest)), octaves);
  std::memcpy(record + kInt8Block, &unit, sizeof unit);
  if (HWY_UNLIKELY(std::isnan(unit))) std::fill(&moment[0][0], &moment[0][0] + kInt8Block, 0.0f);
  return twice_inverse(unit);
}

HWY_INLINE void keep(const Element& element, int byte, int64_t lane, RecordBuffer& buffer, Largest& largest) {
  const FloatTag d;
  const BitsTag bits;
  hn::Store(element.m, d, &buffer.m[byte][lane]);
  hn::Store(element.v, d, &buffer.v[byte][lane]);
  largest.m = hn::Max(largest.m, hn::BitCast(bits, hn::Abs(element.m)));
  largest.v = hn::Max(largest.v, hn::BitCast(bits, element.v));
}

// One vector of lanes of one half of a record: updates and writes the weight; the moments go to the buffer.
template <bool kL2, int kHalf, class Gradient>
HWY_INLINE void update_half(const RoundedWeight& weight, const Gradient& gradient, int64_t begin,
                            int64_t lane, BitsVec m_codes, BitsVec v_codes, FloatVec half_m_unit,
                            FloatVec half_v_unit, const RangeStep& range, RecordBuffer& buffer,
                            Largest& largest) {
  constexpr int kEven = 2 * kHalf, kOdd = kEven + 1;
  const int64_t i = begin + kHalf * kHalfRecord + 2 * lane;
  const FloatPair w = weight.load<Alternating>(i);
  const ElementPair old{{w.first, decode_first_moment<kEven>(m_codes, half_m_unit),
                         decode_second_moment<kEven>(v_codes, half_v_unit)},
                        {w.second, decode_first_moment<kOdd>(m_codes, half_m_unit),
                         decode_second_moment<kOdd>(v_codes, half_v_unit)}};
  const ElementPair pair = adam<kL2>(old, gradient.template load<Alternating>(i), range.step);
  keep(pair.first, kEven, lane, buffer, largest);
  keep(pair.second, kOdd, lane, buffer, largest);
  const BitsVec hash = hash_of(range.keys, range.first_element + static_cast<uint64_t>(i));
  hn::Store(hash, BitsTag(), &buffer.hashes[kHalf][lane]);
  weight.store<Alternating>(i, {pair.first.w, pair.second.w}, {hash, hash, hash});
}

template <bool kL2, class Gradient>
HWY_INLINE Largest update_record_values(const RoundedWeight& weight, const uint8_t* m, const uint8_t* v,
                                        const Gradient& gradient, int64_t begin, const RangeStep& range,
                                        RecordBuffer& buffer) {
  const FloatTag d;
  const FloatVec half_m_unit = hn::Set(d, load_unit(m) / 2), half_v_unit = hn::Set(d, load_unit(v) / 2);
  Largest largest{hn::Zero(BitsTag()), hn::Zero(BitsTag())};
  for (int64_t lane = 0; lane < kRecordLanes; lane += static_cast<int64_t>(hn::Lanes(d))) {
    const BitsVec m_codes = load_lanes_at(m + 4 * lane), v_codes = load_lanes_at(v + 4 * lane);
    update_half<kL2, 0>(weight, gradient, begin, lane, m_codes, v_codes, half_m_unit, half_v_unit, range,
                        buffer, largest);
    update_half<kL2, 1>(weight, gradient, begin, lane, m_codes, v_codes, half_m_unit, half_v_unit, range,
                        buffer, largest);
  }
  return largest;
}

template <int kByte>
HWY_INLINE void encode_byte(const RecordBuffer& buffer, int64_t lane, FloatVec m_factor, FloatVec v_factor,
                            const DrawVecs& draws, BitsVec& m_codes, BitsVec& v_codes) {
  const FloatTag d;
  m_codes =
      encode_first_moment<kByte>(m_codes, hn::Load(d, &buffer.m[kByte][lane]), m_factor, draws.first_moment);
  v_codes = encode_second_moment<kByte>(v_codes, hn::Load(d, &buffer.v[kByte][lane]), v_factor,
                                        draws.second_moment);
}

HWY_INLINE void encode_moments(const RecordBuffer& buffer, float two_over_m_unit, float two_over_v_unit,
                               uint8_t* m, uint8_t* v) {
  const FloatTag d;
  const BitsTag bits;
  const FloatVec m_factor = hn::Set(d, two_over_m_unit), v_factor = hn::Set(d, two_over_v_unit);
  for (int64_t lane = 0; lane < kRecordLanes; lane += static_cast<int64_t>(hn::Lanes(d))) {
    BitsVec m_codes = hn::Zero(bits), v_codes = hn::Zero(bits);
    const DrawVecs low_half = draws_of(hn::Load(bits, &buffer.hashes[0][lane]));
    encode_byte<0>(buffer, lane, m_factor, v_factor, low_half, m_codes, v_codes);
    encode_byte<1>(buffer, lane, m_factor, v_factor, low_half, m_codes, v_codes);
    const DrawVecs high_half = draws_of(hn::Load(bits, &buffer.hashes[1][lane]));
    encode_byte<2>(buffer, lane, m_factor, v_factor, high_half, m_codes, v_codes);
    encode_byte<3>(buffer, lane, m_factor, v_factor, high_half, m_codes, v_codes);
    store_lanes_at(m_codes, m + 4 * lane);
    store_lanes_at(v_codes, v + 4 * lane);
  }
}

// `begin` is of weight and gradient; m and v are records.
template <bool kL2, class Gradient>
HWY_INLINE void update_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v, const Gradient& gradient,
                              int64_t begin, const RangeStep& range) {
  RecordBuffer buffer;
  const Largest largest = update_record_values<kL2>(weight, m, v, gradient, begin, range, buffer);
  const float m_factor = store_unit(largest.m, kFirstMomentOctaves, buffer.m, m);
  const float v_factor = store_unit(largest.v, kSecondMomentOctaves, buffer.v, v);
  encode_moments(buffer, m_factor, v_factor, m, v);
}

// The last record may have fewer elements: the rest of it has weight and gradient zero.
template <bool kL2, class Gradient>
HWY_NOINLINE void update_partial_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v,
                                        const Gradient& gradient, int64_t begin, int64_t count,
                                        const RangeStep& range) {
  using Value = std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>;
  uint16_t padded_weight[kInt8Block] = {};
  Value padded_gradient[kInt8Block] = {};
  copy(weight.weight + begin, padded_weight, count);
  copy(gradient.values + begin, padded_gradient, count);
  update_record<kL2>(RoundedWeight{padded_weight}, m, v, Gradient{padded_gradient}, 0,
                     RangeStep{range.step, range.keys, range.first_element + static_cast<uint64_t>(begin)});
  copy(padded_weight, weight.weight + begin, count);
}

template <bool kL2, class Gradient>
void update_int8(const RoundedWeight weight, uint8_t* m, uint8_t* v, const Gradient gradient, int64_t size,
                 const RangeStep range) {
  int64_t begin = 0;
  for (; size - begin >= kInt8Block; begin += kInt8Block, m += kInt8RecordBytes, v += kInt8RecordBytes) {
    for (int64_t ahead = begin + kPrefetchDistance; ahead < begin + kPrefetchDistance + kInt8Block;
         ahead += kBlock) {
      weight.prefetch_at(ahead);
      gradient.prefetch_at(ahead);
    }
    for (int64_t byte = 0; byte < kInt8RecordBytes; byte += 64) {
      prefetch(m, kPrefetchDistance + byte);
      prefetch(v, kPrefetchDistance + byte);
    }
    update_record<kL2>(weight, m, v, gradient, begin, range);
  }
  if (begin < size) update_partial_record<kL2>(weight, m, v, gradient, begin, size - begin, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
