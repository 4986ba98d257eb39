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

HWY_INLINE BitsVec load_codes(const uint8_t* from) {
  const hn::Rebind<uint8_t, FloatTag> bytes;
  return hn::PromoteTo(BitsTag(), hn::LoadU(bytes, from));
}

// The functions of rounding.h that have these names.
HWY_INLINE FloatVec decode_first_moment(const uint8_t* from, FloatVec unit) {
  const BitsTag d;
  const FloatTag df;
  const BitsVec codes = load_codes(from);
  const BitsVec steps = hn::And(hn::ShiftLeft<kMantissaShift>(codes), hn::Set(d, 0x7fu << kMantissaShift));
  const FloatVec offset_value = hn::BitCast(df, hn::Add(steps, hn::Set(d, kOneBits)));
  const FloatVec magnitude = hn::Mul(hn::Sub(offset_value, hn::Set(df, kFirstMomentOffset)), unit);
  const BitsVec sign = hn::And(hn::ShiftLeft<24>(codes), hn::Set(d, 0x80000000u));
  return hn::BitCast(df, hn::Or(hn::BitCast(d, magnitude), sign));
}
HWY_INLINE FloatVec decode_second_moment(const uint8_t* from, FloatVec unit) {
  const FloatTag df;
  const BitsVec steps = hn::ShiftLeft<kMantissaShift>(load_codes(from));
  const FloatVec offset_value = hn::BitCast(df, hn::Add(steps, hn::Set(BitsTag(), kOneBits)));
  return hn::Mul(hn::Sub(offset_value, hn::Set(df, kSecondMomentOffset)), unit);
}

// Codes in 16.16 fixed point, as store_codes takes them.
HWY_INLINE BitsVec steps_of(FloatVec offset_value) {
  const BitsTag d;
  return hn::ShiftRight<kMantissaShift - 16>(hn::Sub(hn::BitCast(d, offset_value), hn::Set(d, kOneBits)));
}
HWY_INLINE BitsVec first_moment_steps(FloatVec value, FloatVec inverse_unit) {
  const BitsTag d;
  const FloatTag df;
  const FloatVec magnitude = hn::Mul(hn::Abs(value), inverse_unit);
  const BitsVec sign = hn::And(hn::ShiftRight<8>(hn::BitCast(d, value)), hn::Set(d, 0x00800000u));
  return hn::Or(steps_of(hn::Add(magnitude, hn::Set(df, kFirstMomentOffset))), sign);
}
HWY_INLINE BitsVec second_moment_steps(FloatVec value, FloatVec inverse_unit) {
  const FloatTag df;
  const FloatVec offset_value = hn::Add(hn::Mul(value, inverse_unit), hn::Set(df, kSecondMomentOffset));
  return steps_of(hn::Max(offset_value, hn::Set(df, 1.0f)));
}

// What a record is between decoding and encoding.
struct alignas(64) RecordBuffer {
  float m[kInt8Block];
  float v[kInt8Block];
  uint32_t hashes[kInt8Block / 2];
};

HWY_INLINE float load_unit(const uint8_t* record) {
  float unit;
  std::memcpy(&unit, record + kInt8Block, sizeof unit);
  return unit;
}

// Sets the unit of a record by its largest magnitude and returns the inverse. Numbers that are not finite
// become zeros: what NaN is in bits depends on the instruction set.
HWY_INLINE float store_unit(BitsVec largest, int octaves, float* moment, uint8_t* record) {
  const float unit = record_unit(hn::GetLane(hn::MaxOfLanes(BitsTag(), largest)), octaves);
  std::memcpy(record + kInt8Block, &unit, sizeof unit);
  if (unit > 0) return 1 / unit;
  if (std::isnan(unit)) std::fill(moment, moment + kInt8Block, 0.0f);
  return 0;
}

struct Largest {
  BitsVec m, v;
};

// Decodes, updates and writes the weight; the moments go to the buffer.
template <class Gradient>
HWY_INLINE Largest update_record_values(const RoundedWeight& weight, const uint8_t* m, const uint8_t* v,
                                        const Gradient& gradient, int64_t begin, const RangeStep& range,
                                        RecordBuffer& buffer) {
  const FloatTag d;
  const BitsTag bits;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec m_unit = hn::Set(d, load_unit(m)), v_unit = hn::Set(d, load_unit(v));
  Largest largest{hn::Zero(bits), hn::Zero(bits)};
  const auto updated = [&](int64_t i) HWY_ATTR {
    const Element old{weight.load(begin + i), decode_first_moment(m + i, m_unit),
                      decode_second_moment(v + i, v_unit)};
    const Element element = adam(old, gradient.load(begin + i), range.step);
    hn::Store(element.m, d, buffer.m + i);
    hn::Store(element.v, d, buffer.v + i);
    largest.m = hn::Max(largest.m, hn::BitCast(bits, hn::Abs(element.m)));
    largest.v = hn::Max(largest.v, hn::BitCast(bits, element.v));
    return element.w;
  };
  for (int64_t i = 0; i < kInt8Block; i += 2 * lanes) {
    const FloatVec first = updated(i), second = updated(i + lanes);
    const BitsVec hash = hash_of(range.keys, range.first_element + static_cast<uint64_t>(begin + i));
    hn::Store(hash, bits, buffer.hashes + i / 2);
    weight.store_pair(begin + i, first, second, draws_of(hash));
  }
  return largest;
}

HWY_INLINE void encode_moments(const RecordBuffer& buffer, float inverse_m_unit, float inverse_v_unit,
                               uint8_t* m, uint8_t* v) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const FloatVec inverse_m = hn::Set(d, inverse_m_unit), inverse_v = hn::Set(d, inverse_v_unit);
  for (int64_t i = 0; i < kInt8Block; i += 2 * lanes) {
    const DrawVecs draws = draws_of(hn::Load(BitsTag(), buffer.hashes + i / 2));
    store_codes(first_moment_steps(hn::Load(d, buffer.m + i), inverse_m),
                first_moment_steps(hn::Load(d, buffer.m + i + lanes), inverse_m), draws.first_moment, m + i);
    store_codes(second_moment_steps(hn::Load(d, buffer.v + i), inverse_v),
                second_moment_steps(hn::Load(d, buffer.v + i + lanes), inverse_v), draws.second_moment,
                v + i);
  }
}

// `begin` is of weight and gradient; m and v are records.
template <class Gradient>
HWY_INLINE void update_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v, const Gradient& gradient,
                              int64_t begin, const RangeStep& range) {
  RecordBuffer buffer;
  const Largest largest = update_record_values(weight, m, v, gradient, begin, range, buffer);
  const float inverse_m = store_unit(largest.m, kFirstMomentOctaves, buffer.m, m);
  const float inverse_v = store_unit(largest.v, kSecondMomentOctaves, buffer.v, v);
  encode_moments(buffer, inverse_m, inverse_v, m, v);
}

// The last record may have fewer elements: the rest of it has weight and gradient zero.
template <class Gradient>
void update_partial_record(const RoundedWeight& weight, uint8_t* m, uint8_t* v, const Gradient& gradient,
                           int64_t begin, int64_t count, const RangeStep& range) {
  using Value = std::remove_const_t<std::remove_pointer_t<decltype(gradient.values)>>;
  uint16_t padded_weight[kInt8Block] = {};
  Value padded_gradient[kInt8Block] = {};
  copy(weight.weight + begin, padded_weight, count);
  copy(gradient.values + begin, padded_gradient, count);
  update_record(RoundedWeight{padded_weight}, m, v, Gradient{padded_gradient}, 0,
                RangeStep{range.step, range.keys, range.first_element + static_cast<uint64_t>(begin)});
  copy(padded_weight, weight.weight + begin, count);
}

template <class Gradient>
void update_int8(const RoundedWeight& weight, uint8_t* m, uint8_t* v, const Gradient& gradient, int64_t size,
                 const RangeStep& range) {
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
    update_record(weight, m, v, gradient, begin, range);
  }
  if (begin < size) update_partial_record(weight, m, v, gradient, begin, size - begin, range);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
