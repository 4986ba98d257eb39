#include "cpu_optim/adamw.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/adamw.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "cpu_optim/adamw-inl.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

void update_split(const SplitState& state, FloatView gradient, const AdamStep& step) {
  update_range(SplitFormat{words(state.high.data()), words(state.low.data()), state.m.data(), state.v.data()},
               gradient, step);
}

void update_fp32(const Fp32State& state, FloatView gradient, const AdamStep& step) {
  update_range(Fp32Format{state.master.data(), state.m.data(), state.v.data(), words(state.weight.data())},
               gradient, step);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu_optim {
namespace {

HWY_EXPORT(update_split);
HWY_EXPORT(update_fp32);

}  // namespace

void update(const SplitState& state, FloatView gradient, const AdamStep& step) {
  const size_t size = state.high.size();
  SLUICE_CHECK(state.low.size() == size && state.m.size() == size && state.v.size() == size);
  SLUICE_CHECK(gradient.size() == state.size());
  HWY_DYNAMIC_DISPATCH(update_split)(state, gradient, step);
}

void update(const Fp32State& state, FloatView gradient, const AdamStep& step) {
  const size_t size = state.master.size();
  SLUICE_CHECK(state.m.size() == size && state.v.size() == size && state.weight.size() == size);
  SLUICE_CHECK(gradient.size() == state.size());
  HWY_DYNAMIC_DISPATCH(update_fp32)(state, gradient, step);
}

void update(const StateSpan& state, FloatView gradient, const AdamStep& step) {
  const auto size = static_cast<size_t>(state.size);
  const auto floats = [size](std::byte* stream) { return std::span(reinterpret_cast<float*>(stream), size); };
  const std::span weight(state.weight, size);
  const std::span first = floats(state.first_moment), second = floats(state.second_moment);
  if (state.format == StateFormat::split) {
    update(SplitState{weight, {reinterpret_cast<int16_t*>(state.low), size}, first, second}, gradient, step);
    return;
  }
  SLUICE_CHECK(state.format == StateFormat::fp32, "not written yet");
  update(Fp32State{floats(state.low), first, second, weight}, gradient, step);
}

}  // namespace sluice::cpu_optim
#endif
