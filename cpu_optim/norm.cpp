#include "cpu_optim/norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/norm.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "cpu_optim/simd-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

using DoubleTag = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<DoubleTag>;
inline constexpr int64_t kAccumulators = 32;

HWY_INLINE DoubleVec load_double(const float* from) {
  return hn::PromoteTo(DoubleTag(), hn::LoadU(hn::Rebind<float, DoubleTag>(), from));
}

HWY_INLINE DoubleVec load_double(const uint16_t* bf16) {
  const hn::Rebind<uint32_t, DoubleTag> bits;
  const auto words = hn::LoadU(hn::Rebind<uint16_t, DoubleTag>(), bf16);
  const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(bits, words));
  return hn::PromoteTo(DoubleTag(), hn::BitCast(hn::Rebind<float, DoubleTag>(), wide));
}

// The squares are exact, so a fused multiply-add rounds as a plain addition does.
template <class T>
HWY_INLINE double sum_chunk(const T* values, int64_t size) {
  constexpr DoubleTag d;
  constexpr size_t kVectors = kAccumulators / hn::MaxLanes(d);
  DoubleVec sums[kVectors];
  for (DoubleVec& sum : sums) sum = hn::Zero(d);
  const auto add_row = [&sums](const T* row) HWY_ATTR {
    for (size_t k = 0; k < kVectors; ++k) {
      const DoubleVec value = load_double(row + k * hn::MaxLanes(DoubleTag()));
      sums[k] = hn::MulAdd(value, value, sums[k]);
    }
  };
  int64_t i = 0;
  for (; size - i >= kAccumulators; i += kAccumulators) add_row(values + i);
  if (i < size) {
    T rest[kAccumulators] = {};
    std::memcpy(rest, values + i, static_cast<size_t>(size - i) * sizeof(T));
    add_row(rest);
  }
  double lanes[kAccumulators];
  for (size_t k = 0; k < kVectors; ++k) hn::StoreU(sums[k], d, lanes + k * hn::MaxLanes(d));
  for (int64_t width = kAccumulators / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

double sum_fp32(const float* values, int64_t size) {
  return sum_chunk(values, size);
}
double sum_bf16(const BFloat16* values, int64_t size) {
  return sum_chunk(words(values), size);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu_optim {
namespace {

HWY_EXPORT(sum_fp32);
HWY_EXPORT(sum_bf16);

}  // namespace

double sum_of_squares(FloatView chunk) {
  SLUICE_CHECK(chunk.size() <= kNormChunk, "the order of a sum is defined within one chunk");
  if (chunk.dtype() == DType::bf16) return HWY_DYNAMIC_DISPATCH(sum_bf16)(chunk.bf16(), chunk.size());
  return HWY_DYNAMIC_DISPATCH(sum_fp32)(chunk.fp32(), chunk.size());
}

void sums_of_squares(Executor& executor, FloatView values, std::span<double> chunk_sums) {
  SLUICE_CHECK(static_cast<int64_t>(chunk_sums.size()) == norm_chunk_count(values.size()));
  run_ranges(executor, values.size(), kNormChunk, [&](int64_t begin, int64_t end, int) {
    chunk_sums[static_cast<size_t>(begin / kNormChunk)] = sum_of_squares(values.subrange(begin, end - begin));
  });
}

double tree_sum(std::span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const size_t left = std::bit_floor(values.size() - 1);
  return tree_sum(values.first(left)) + tree_sum(values.subspan(left));
}

std::optional<float> clip_coefficient(double norm, double max_norm) {
  SLUICE_CHECK(max_norm >= 0 && !(norm < 0));
  if (!std::isfinite(norm)) return std::nullopt;
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

}  // namespace sluice::cpu_optim
#endif
