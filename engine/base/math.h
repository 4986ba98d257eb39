#pragma once

#include <cstdint>

namespace sluice {

template <class T>
constexpr T divide_up(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

// The next multiple of `multiple` at or above `value`.
template <class T>
constexpr T round_up(T value, T multiple) {
  return divide_up(value, multiple) * multiple;
}

}  // namespace sluice
