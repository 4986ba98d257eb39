#pragma once

#include <span>

#include "cpu_optim/state_format.h"

// The numbers behind the bytes of any state format, for looking at states and for changing their format; not
// for a step. Thread-safe over disjoint ranges; the calling thread does the work.
namespace sluice::cpu_optim {

// Of each element, `weight` being the master where the format has one. All spans have state.size numbers.
struct StateNumbers {
  std::span<float> weight, first_moment, second_moment;
};

// Exact. In int8 the second moment of an untouched element is that of its record's least code (rounding.h).
void decode(const StateSpan& state, const StateNumbers& numbers);

// To the nearest number of the format, ties up in magnitude.
void encode(const StateNumbers& numbers, const StateSpan& state);

}  // namespace sluice::cpu_optim
