// Fused multiply-add with the same bits on every instruction set.

#if defined(SLUICE_CPU_OPTIM_FUSED_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_FUSED_INL_H
#undef SLUICE_CPU_OPTIM_FUSED_INL_H
#else
#define SLUICE_CPU_OPTIM_FUSED_INL_H
#endif

#include <cmath>

#include "cpu_optim/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE FloatVec fused(FloatVec a, FloatVec b, FloatVec c) {
  return hn::Set(FloatTag(), std::fma(a.raw, b.raw, c.raw));
}

#elif HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // older than the instruction

// a * b + c, whose product is exact, rounded to odd: where it is between two doubles, that with an odd last
// bit. Rounding this to fp32 is rounding once (Boldo and Melquiond, IEEE TC 57, 2008).
template <class D, class V = hn::Vec<D> >
HWY_INLINE V fused_to_odd(D d, V a, V b, V c) {
  const hn::RebindToSigned<D> bits;
  const V product = hn::Mul(a, b);
  const V sum = hn::Add(product, c);
  const V part = hn::Sub(sum, product);  // of c; Knuth's exact error of a sum
  const V error = hn::Add(hn::Sub(product, hn::Sub(sum, part)), hn::Sub(c, part));
  const auto inexact = hn::Or(hn::Lt(error, hn::Zero(d)), hn::Gt(error, hn::Zero(d)));  // no NaN
  const auto one = hn::Set(bits, 1);
  const auto sum_bits = hn::BitCast(bits, sum);
  const auto even = hn::Eq(hn::And(sum_bits, one), hn::Zero(bits));
  const auto away = hn::BitCast(bits, hn::Xor(sum, error));  // negative: the result is nearer to zero
  const auto step = hn::IfThenElse(hn::Lt(away, hn::Zero(bits)), hn::Set(bits, -1), one);
  const auto taken = hn::And(hn::VecFromMask(bits, even), hn::BitCast(bits, hn::VecFromMask(d, inexact)));
  return hn::BitCast(d, hn::Add(sum_bits, hn::And(step, taken)));
}

HWY_INLINE FloatVec fused(FloatVec a, FloatVec b, FloatVec c) {
  const FloatTag d;
  const hn::Half<FloatTag> half;
  const hn::Rebind<double, decltype(half)> wide;
  const auto lower =
      fused_to_odd(wide, hn::PromoteTo(wide, hn::LowerHalf(half, a)),
                   hn::PromoteTo(wide, hn::LowerHalf(half, b)), hn::PromoteTo(wide, hn::LowerHalf(half, c)));
  const auto upper =
      fused_to_odd(wide, hn::PromoteTo(wide, hn::UpperHalf(half, a)),
                   hn::PromoteTo(wide, hn::UpperHalf(half, b)), hn::PromoteTo(wide, hn::UpperHalf(half, c)));
  return hn::Combine(d, hn::DemoteTo(half, upper), hn::DemoteTo(half, lower));
}

#else

HWY_INLINE FloatVec fused(FloatVec a, FloatVec b, FloatVec c) {
  return hn::MulAdd(a, b, c);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
