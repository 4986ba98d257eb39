#include "cpu_optim/convert.h"

#include <cstring>
#include <type_traits>

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/convert.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "cpu_optim/simd-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

// 32-bit lanes that stand in memory as fp32, or in the low word of each lane as 16 bits.
HWY_INLINE BitsVec load_lanes(const float* from) {
  return hn::BitCast(BitsTag(), hn::LoadU(FloatTag(), from));
}
HWY_INLINE BitsVec load_lanes(const uint16_t* from) {
  return load_words(from);
}

HWY_INLINE void store_lanes(BitsVec first, BitsVec second, float* to) {
  const FloatTag d;
  hn::StoreU(hn::BitCast(d, first), d, to);
  hn::StoreU(hn::BitCast(d, second), d, to + hn::Lanes(d));
}
HWY_INLINE void store_lanes(BitsVec first, BitsVec second, uint16_t* to) {
  store_low_words(first, second, to);
}

// to = op(from), lane by lane; the rest of a range goes through padded buffers and the same code.
template <class From, class To, class Op>
HWY_INLINE void transform(const From* from, To* to, size_t size, const Op& op) {
  const size_t lanes = hn::Lanes(FloatTag());
  const auto pair = [&](const From* source, To* target) HWY_ATTR {
    store_lanes(op(load_lanes(source)), op(load_lanes(source + lanes)), target);
  };
  size_t i = 0;
  for (; size - i >= 2 * lanes; i += 2 * lanes) pair(from + i, to + i);
  if (i == size) return;
  From source[kMaxPair] = {};
  To target[kMaxPair];
  std::memcpy(source, from + i, (size - i) * sizeof(From));
  pair(source, target);
  std::memcpy(to + i, target, (size - i) * sizeof(To));
}

HWY_INLINE hn::Mask<BitsTag> is_nan(BitsVec magnitude) {
  const hn::RebindToSigned<BitsTag> d;  // magnitudes are positive, and signed comparison is what SSE4 has
  return hn::RebindMask(BitsTag(), hn::Gt(hn::BitCast(d, magnitude), hn::Set(d, 0x7f800000)));
}
HWY_INLINE hn::Mask<BitsTag> less(BitsVec magnitude, int32_t limit) {
  const hn::RebindToSigned<BitsTag> d;
  return hn::RebindMask(BitsTag(), hn::Lt(hn::BitCast(d, magnitude), hn::Set(d, limit)));
}

// The bf16 in the high word, low word unspecified.
HWY_INLINE BitsVec round_bf16(BitsVec bits) {
  const BitsTag d;
  const BitsVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const BitsVec rounded = hn::Add(bits, hn::Add(hn::Set(d, 0x7fff), odd));
  const BitsVec quiet = hn::Or(bits, hn::Set(d, 0x400000));
  return hn::IfThenElse(is_nan(hn::And(bits, hn::Set(d, 0x7fffffff))), quiet, rounded);
}

HWY_INLINE BitsVec half_to_float(BitsVec half) {
  const BitsTag d;
  const FloatTag df;
  const BitsVec sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000)));
  const BitsVec magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(d, 0x7fff)));
  // Read as fp32 the exponent is 112 too small; the product is exact and makes subnormal halves normal.
  const BitsVec finite = hn::BitCast(d, hn::Mul(hn::BitCast(df, magnitude), hn::Set(df, 0x1p112f)));
  const BitsVec special = hn::Or(magnitude, hn::Set(d, 0x7f800000));
  return hn::Or(sign, hn::IfThenElse(less(magnitude, 0x0f800000), finite, special));
}

HWY_INLINE BitsVec float_to_half(BitsVec bits) {
  const BitsTag d;
  const FloatTag df;
  const BitsVec magnitude = hn::And(bits, hn::Set(d, 0x7fffffff));
  const BitsVec sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const BitsVec odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const BitsVec normal = hn::ShiftRight<13>(
      hn::Sub(hn::Add(magnitude, hn::Add(hn::Set(d, 0xfff), odd)), hn::Set(d, 0x38000000)));
  // A unit of 0.5 is 2^-24, that of subnormal halves: the addition rounds, to even.
  const BitsVec sum = hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f)));
  const BitsVec subnormal = hn::Sub(sum, hn::BitCast(d, hn::Set(df, 0.5f)));
  const BitsVec finite = hn::IfThenElse(less(magnitude, 0x38800000), subnormal, normal);
  const BitsVec large = hn::IfThenElse(is_nan(magnitude), hn::Set(d, 0x7e00), hn::Set(d, 0x7c00));
  return hn::Or(sign, hn::IfThenElse(less(magnitude, 0x477ff000), finite, large));
}

void bf16_to_fp32(const uint16_t* from, float* to, size_t size) {
  transform(from, to, size, [](BitsVec word) HWY_ATTR { return hn::ShiftLeft<16>(word); });
}
void fp16_to_fp32(const uint16_t* from, float* to, size_t size) {
  transform(from, to, size, [](BitsVec word) HWY_ATTR { return half_to_float(word); });
}
void fp32_to_bf16(const float* from, uint16_t* to, size_t size) {
  transform(from, to, size, [](BitsVec bits) HWY_ATTR { return hn::ShiftRight<16>(round_bf16(bits)); });
}
void fp32_to_fp16(const float* from, uint16_t* to, size_t size) {
  transform(from, to, size, [](BitsVec bits) HWY_ATTR { return float_to_half(bits); });
}
void round_fp32(const float* from, float* to, size_t size) {
  transform(from, to, size,
            [](BitsVec bits) HWY_ATTR { return hn::And(round_bf16(bits), hn::Set(BitsTag(), 0xffff0000u)); });
}

void high_halves(const float* from, uint16_t* to, size_t size) {
  transform(from, to, size, [](BitsVec bits) HWY_ATTR {
    return hn::ShiftRight<16>(round_half_up(hn::BitCast(FloatTag(), bits)));
  });
}
void low_halves(const float* from, uint16_t* to, size_t size) {
  transform(from, to, size, [](BitsVec bits) HWY_ATTR { return bits; });
}

void join_halves(const uint16_t* high, const uint16_t* low, float* to, size_t size) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; size - i >= lanes; i += lanes) hn::StoreU(load_split(high + i, low + i), d, to + i);
  if (i == size) return;
  uint16_t words[2][kMaxPair] = {};
  float target[kMaxPair];
  std::memcpy(words[0], high + i, (size - i) * sizeof(uint16_t));
  std::memcpy(words[1], low + i, (size - i) * sizeof(uint16_t));
  hn::StoreU(load_split(words[0], words[1]), d, target);
  std::memcpy(to + i, target, (size - i) * sizeof(float));
}

void add_fp32(const float* values, float* sums, size_t size) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; size - i >= lanes; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, sums + i), hn::LoadU(d, values + i)), d, sums + i);
  }
  for (; i < size; ++i) sums[i] += values[i];
}

template <class T, class Load>
HWY_INLINE int64_t count_if_non_finite(const T* values, size_t size, const Load& load) {
  const BitsTag d;
  const BitsVec exponent = hn::Set(d, 0x7f800000);
  const auto count = [&](const T* from) HWY_ATTR {
    const hn::RebindToSigned<BitsTag> di;
    const BitsVec bits = hn::And(load(from), exponent);
    return static_cast<int64_t>(hn::CountTrue(di, hn::Eq(hn::BitCast(di, bits), hn::BitCast(di, exponent))));
  };
  int64_t total = 0;
  size_t i = 0;
  for (; size - i >= hn::Lanes(d); i += hn::Lanes(d)) total += count(values + i);
  if (i == size) return total;
  T rest[kMaxPair] = {};
  std::memcpy(rest, values + i, (size - i) * sizeof(T));
  return total + count(rest);
}

int64_t count_fp32(const float* values, size_t size) {
  return count_if_non_finite(values, size, [](const float* from) HWY_ATTR { return load_lanes(from); });
}
int64_t count_bf16(const uint16_t* values, size_t size) {
  return count_if_non_finite(
      values, size, [](const uint16_t* from) HWY_ATTR { return hn::ShiftLeft<16>(load_words(from)); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu_optim {
namespace {

HWY_EXPORT(bf16_to_fp32);
HWY_EXPORT(fp16_to_fp32);
HWY_EXPORT(fp32_to_bf16);
HWY_EXPORT(fp32_to_fp16);
HWY_EXPORT(round_fp32);
HWY_EXPORT(high_halves);
HWY_EXPORT(low_halves);
HWY_EXPORT(join_halves);
HWY_EXPORT(add_fp32);
HWY_EXPORT(count_fp32);
HWY_EXPORT(count_bf16);

template <class T>
auto words(std::span<T> values) {
  using Word = std::conditional_t<std::is_const_v<T>, const uint16_t, uint16_t>;
  return reinterpret_cast<Word*>(values.data());
}

}  // namespace

void convert(std::span<const BFloat16> from, std::span<float> to) {
  SLUICE_CHECK(from.size() == to.size());
  HWY_DYNAMIC_DISPATCH(bf16_to_fp32)(words(from), to.data(), to.size());
}

void convert(std::span<const Float16> from, std::span<float> to) {
  SLUICE_CHECK(from.size() == to.size());
  HWY_DYNAMIC_DISPATCH(fp16_to_fp32)(words(from), to.data(), to.size());
}

void convert(std::span<const float> from, std::span<BFloat16> to) {
  SLUICE_CHECK(from.size() == to.size());
  HWY_DYNAMIC_DISPATCH(fp32_to_bf16)(from.data(), words(to), to.size());
}

void convert(std::span<const float> from, std::span<Float16> to) {
  SLUICE_CHECK(from.size() == to.size());
  HWY_DYNAMIC_DISPATCH(fp32_to_fp16)(from.data(), words(to), to.size());
}

void split_masters(std::span<const float> masters, std::span<BFloat16> high, std::span<int16_t> low) {
  SLUICE_CHECK(masters.size() == high.size() && masters.size() == low.size());
  HWY_DYNAMIC_DISPATCH(high_halves)(masters.data(), words(high), high.size());
  HWY_DYNAMIC_DISPATCH(low_halves)(masters.data(), words(low), low.size());
}

void join_masters(std::span<const BFloat16> high, std::span<const int16_t> low, std::span<float> masters) {
  SLUICE_CHECK(masters.size() == high.size() && masters.size() == low.size());
  HWY_DYNAMIC_DISPATCH(join_halves)(words(high), words(low), masters.data(), masters.size());
}

void round_to_bf16(std::span<const float> from, std::span<float> to) {
  SLUICE_CHECK(from.size() == to.size());
  HWY_DYNAMIC_DISPATCH(round_fp32)(from.data(), to.data(), to.size());
}

void add(std::span<const float> values, std::span<float> sums) {
  SLUICE_CHECK(values.size() == sums.size());
  HWY_DYNAMIC_DISPATCH(add_fp32)(values.data(), sums.data(), sums.size());
}

void add_rows(std::span<const float> values, std::span<const int32_t> rows, int64_t width,
              std::span<float> sums) {
  SLUICE_CHECK(width >= 0 &&
               static_cast<int64_t>(values.size()) == static_cast<int64_t>(rows.size()) * width);
  for (size_t r = 0; r < rows.size(); ++r) {
    add(subrange(values, static_cast<int64_t>(r) * width, width),
        subrange(sums, int64_t{rows[r]} * width, width));
  }
}

int64_t count_non_finite(FloatView values) {
  const auto size = static_cast<size_t>(values.size());
  if (values.dtype() == DType::f32) return HWY_DYNAMIC_DISPATCH(count_fp32)(values.fp32(), size);
  const BFloat16* data = values.bf16();
  return HWY_DYNAMIC_DISPATCH(count_bf16)(reinterpret_cast<const uint16_t*>(data), size);
}

}  // namespace sluice::cpu_optim
#endif
