#pragma once

#include <span>

namespace sluice {

// Of an even number of values the mean of the middle two; 0 where there are none.
double median(std::span<const double> values);

}  // namespace sluice
