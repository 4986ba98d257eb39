#include "gpu/host/attention_rows.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/host/attention_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::gpu::host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using Floats = hn::CappedTag<float, 16>;
using Bits = hn::Rebind<uint32_t, Floats>;
using Signed = hn::Rebind<int32_t, Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;
using Vector = hn::Vec<Floats>;

// 2^x: x = n + f with |f| <= 1/2, 2^f by a polynomial interpolated in Chebyshev nodes (relative error 7.1e-8
// with fp32 arithmetic, all f tried on a grid). Below 2^-126 the result is 0; NaN stays NaN.
HWY_INLINE Vector exp2(Vector x) {
  const Floats d;
  const Signed di;
  const Vector low = hn::Set(d, -126.0f);
  const Vector clamped = hn::Max(low, x);  // the second operand where one is NaN
  const Vector whole = hn::Round(clamped);
  const Vector f = clamped - whole;
  Vector p = hn::Set(d, 0.00015453163359779865f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013390863314270973f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618083015084267f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055503569543361664f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022650718688965f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471824645996f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const Vector scaled = hn::BitCast(d, hn::BitCast(di, p) + exponent);
  return hn::IfThenZeroElse(x < low, scaled);
}

// bf16 bits, to nearest even. A NaN that arithmetic makes stays one.
HWY_INLINE hn::Vec<Bits> round_bits(Vector value) {
  const Bits d;
  const auto bits = hn::BitCast(d, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  return hn::ShiftRight<16>(bits + odd + hn::Set(d, 0x7fff));
}

// The same with ties away from zero, two operations cheaper: for weights that only feed the next product.
HWY_INLINE hn::Vec<Bits> add_half(Vector value) {
  const Bits d;
  return hn::BitCast(d, value) + hn::Set(d, 0x8000);
}
// bf16 of two vectors side by side, `low` in the lower half of each lane.
HWY_INLINE hn::Vec<Bits> pair_bits(hn::Vec<Bits> low, hn::Vec<Bits> high) {
  return hn::Or(hn::ShiftRight<16>(low), hn::And(high, hn::Set(Bits(), 0xffff0000u)));
}

HWY_INLINE Vector widen(const uint16_t* data) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Bits(), hn::LoadU(Halves(), data))));
}

HWY_INLINE Vector visible_only(Vector value, int64_t begin, int64_t visible) {
  const Floats d;
  if (begin + static_cast<int64_t>(hn::Lanes(d)) <= visible) return value;
  if (begin >= visible) return hn::Zero(d);
  return hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(visible - begin)), value);
}

SoftmaxSum softmax(const SoftmaxRow& row) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vector factor = hn::Set(d, row.factor);
  const Vector lowest = hn::Set(d, -3.0e38f);
  Vector max = lowest;
  int64_t i = 0;
  for (; i + lanes <= row.visible; i += lanes) max = hn::Max(max, hn::LoadU(d, row.scores + i) * factor);
  if (i < row.visible) {
    const Vector last = hn::LoadU(d, row.scores + i) * factor;
    max = hn::Max(max, hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(row.visible - i)), last, lowest));
  }
  max = hn::MaxOfLanes(d, max);
  Vector sum = hn::Zero(d);
  for (i = 0; i < row.padded; i += lanes) {
    const Vector score = hn::LoadU(d, row.scores + i);
    const Vector weight = visible_only(exp2(hn::MulSub(score, factor, max)), i, row.visible);
    sum = sum + weight;
    if (row.dtype == DType::f32)
      hn::StoreU(weight, d, static_cast<float*>(row.weights) + i);
    else
      hn::StoreU(hn::TruncateTo(Halves(), hn::ShiftRight<16>(add_half(weight))), Halves(),
                 static_cast<uint16_t*>(row.weights) + i);
  }
  return {hn::GetLane(max), hn::GetLane(hn::SumOfLanes(d, sum))};
}

void scale(const float* in, float factor, int64_t count, void* out, DType dtype) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) {
    const size_t valid = static_cast<size_t>(std::min(lanes, count - i));
    const Vector value = hn::LoadU(d, in + i) * hn::Set(d, factor);
    if (dtype == DType::f32) {
      float* to = static_cast<float*>(out) + i;
      if (valid == hn::Lanes(d))
        hn::StoreU(value, d, to);
      else
        hn::BlendedStore(value, hn::FirstN(d, valid), d, to);
    } else {
      uint16_t* to = static_cast<uint16_t*>(out) + i;
      const auto halves = hn::TruncateTo(Halves(), round_bits(value));
      if (valid == hn::Lanes(d))
        hn::StoreU(halves, Halves(), to);
      else
        hn::BlendedStore(halves, hn::FirstN(Halves(), valid), Halves(), to);
    }
  }
}

float dot(const void* a, const void* b, int64_t count, DType dtype) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  Vector sum = hn::Zero(d);
  float rest = 0;
  int64_t i = 0;
  if (dtype == DType::f32) {
    const float* left = static_cast<const float*>(a);
    const float* right = static_cast<const float*>(b);
    for (; i + lanes <= count; i += lanes)
      sum = hn::MulAdd(hn::LoadU(d, left + i), hn::LoadU(d, right + i), sum);
    for (; i < count; ++i) rest += left[i] * right[i];
  } else {
    const uint16_t* left = static_cast<const uint16_t*>(a);
    const uint16_t* right = static_cast<const uint16_t*>(b);
    for (; i + lanes <= count; i += lanes) sum = hn::MulAdd(widen(left + i), widen(right + i), sum);
    for (; i < count; ++i)
      rest += hwy::F32FromBF16(hwy::bfloat16_t{left[i]}) * hwy::F32FromBF16(hwy::bfloat16_t{right[i]});
  }
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
}

struct Gradient {
  Vector weight;
  Vector d_score;
};
HWY_INLINE Gradient gradient(const ScoreRow& row, const ScoreScale& scale, int64_t i) {
  const Floats d;
  const Vector exponent =
      hn::MulSub(hn::LoadU(d, row.scores + i), hn::Set(d, scale.factor), hn::Set(d, row.log_sum));
  const Vector weight = visible_only(exp2(exponent), i, row.visible);
  const Vector change = hn::LoadU(d, row.d_weights + i) - hn::Set(d, row.delta);
  // Hidden scores may be anything, so their gradient is cut as well.
  return {weight, visible_only(weight * change * hn::Set(d, scale.scale), i, row.visible)};
}

void gradient_row(const ScoreRow& row, const ScoreScale& scale) {
  const Floats d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < scale.padded; i += lanes) {
    const Gradient result = gradient(row, scale, i);
    hn::StoreU(result.weight, d, row.scores + i);
    hn::StoreU(result.d_score, d, row.d_weights + i);
  }
}

void gradient_pair(const ScoreRow& first, const ScoreRow& second, const ScoreScale& scale,
                   const ScorePairs& out) {
  const Bits bits;
  const Halves halves;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(bits));
  for (int64_t i = 0; i < scale.padded; i += lanes) {
    const Gradient low = gradient(first, scale, i);
    const Gradient high = gradient(second, scale, i);
    const auto low_score = add_half(low.d_score);
    const auto high_score = add_half(high.d_score);
    hn::StoreU(pair_bits(add_half(low.weight), add_half(high.weight)), bits, out.weights + i);
    hn::StoreU(pair_bits(low_score, high_score), bits, out.d_scores + i);
    hn::StoreU(hn::TruncateTo(halves, hn::ShiftRight<16>(low_score)), halves, out.d_score_rows[0] + i);
    hn::StoreU(hn::TruncateTo(halves, hn::ShiftRight<16>(high_score)), halves, out.d_score_rows[1] + i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sluice::gpu::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::gpu::host {

HWY_EXPORT(softmax);
HWY_EXPORT(scale);
HWY_EXPORT(dot);
HWY_EXPORT(gradient_row);
HWY_EXPORT(gradient_pair);

SoftmaxSum softmax_row(const SoftmaxRow& row) {
  return HWY_DYNAMIC_DISPATCH(softmax)(row);
}

void scale_row(const float* in, float factor, int64_t count, void* out, DType dtype) {
  HWY_DYNAMIC_DISPATCH(scale)(in, factor, count, out, dtype);
}

float dot_row(const void* a, const void* b, int64_t count, DType dtype) {
  return HWY_DYNAMIC_DISPATCH(dot)(a, b, count, dtype);
}

void widen_row(const void* bf16, int64_t count, float* out) {
  const uint16_t* from = static_cast<const uint16_t*>(bf16);
  for (int64_t i = 0; i < count; ++i) out[i] = hwy::F32FromBF16(hwy::bfloat16_t{from[i]});
}

void score_gradient_row(const ScoreRow& row, const ScoreScale& scale) {
  HWY_DYNAMIC_DISPATCH(gradient_row)(row, scale);
}

void score_gradient_pair(const ScoreRow& first, const ScoreRow& second, const ScoreScale& scale,
                         const ScorePairs& out) {
  HWY_DYNAMIC_DISPATCH(gradient_pair)(first, second, scale, out);
}

}  // namespace sluice::gpu::host
#endif
