#include "cpu_optim/adamw.h"

#include <algorithm>

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/adamw.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "cpu_optim/adamw-inl.h"
#include "cpu_optim/int8-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

template <class T>
T* values(std::byte* stream) {
  return reinterpret_cast<T*>(stream);
}

// All elements have the same random keys.
template <bool kL2, class Gradient>
void update_states(const StateSpan& state, Gradient gradient, const AdamStep& step) {
  const RandomKeys keys(step.random_key, state.first_element);
  const RangeStep<StepVecs> exact{StepVecs(step), keys, state.first_element};
  const RangeStep<RoundedStepVecs> rounded{RoundedStepVecs(rounded_step(step)), keys, state.first_element};
  const int64_t size = state.size;
  uint16_t* weight = words(state.weight);
  const SplitWeight split{weight, values<uint16_t>(state.low)};
  const Fp32Moments wide{values<float>(state.first_moment), values<float>(state.second_moment)};
  const Bf16Moments narrow{values<uint16_t>(state.first_moment), values<uint16_t>(state.second_moment)};
  switch (state.format) {
    case StateFormat::split:
      return update_range<kL2>(SplitFormat{split, wide}, gradient, size, exact);
    case StateFormat::split_bf16:
      return update_range<kL2>(SplitBf16Format{split, narrow}, gradient, size, rounded);
    case StateFormat::bf16:
      return update_range<kL2>(Bf16Format{RoundedWeight{weight}, narrow}, gradient, size, rounded);
    case StateFormat::int8:
      return update_int8<kL2>(RoundedWeight{weight}, values<uint8_t>(state.first_moment),
                              values<uint8_t>(state.second_moment), gradient, size,
                              rounded_step(step, kNoiseOfRoot), rounded);
    case StateFormat::fp32: {
      auto* master = values<float>(state.low);
      if (weight == nullptr) {
        return update_range<kL2>(BareFp32Format{BareMaster{master}, wide}, gradient, size, exact);
      }
      return update_range<kL2>(Fp32Format{MasterWeight{master, weight}, wide}, gradient, size, exact);
    }
  }
}

template <class Gradient>
void update_states(const StateSpan& state, Gradient gradient, const AdamStep& step) {
  if (step.l2 != 0) return update_states<true>(state, gradient, step);
  update_states<false>(state, gradient, step);
}

void update_span(const StateSpan& state, FloatView gradient, const AdamStep& step) {
  if (gradient.dtype() == DType::bf16)
    return update_states(state, Bf16Gradient{words(gradient.bf16())}, step);
  update_states(state, Fp32Gradient{gradient.fp32()}, step);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu_optim {
namespace {

HWY_EXPORT(update_span);

}  // namespace

void update(const StateSpan& state, FloatView gradient, const AdamStep& step) {
  SLUICE_CHECK(gradient.size() == state.size);
  SLUICE_CHECK(state.format != StateFormat::int8 || state.first_element % kInt8Block == 0);
  for (int64_t begin = 0; begin < state.size;) {
    const uint64_t keyed =
        kKeyedElements - (state.first_element + static_cast<uint64_t>(begin)) % kKeyedElements;
    const auto count = static_cast<int64_t>(std::min(keyed, static_cast<uint64_t>(state.size - begin)));
    HWY_DYNAMIC_DISPATCH(update_span)(state.subrange(begin, count), gradient.subrange(begin, count), step);
    begin += count;
  }
}

}  // namespace sluice::cpu_optim
#endif
