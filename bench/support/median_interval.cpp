#include "bench/support/median_interval.h"

#include <algorithm>
#include <cmath>

#include "apps/common/median.h"
#include "engine/base/error.h"

namespace sluice::bench {
namespace {

// The largest count of values that may be left out at each end: P(Binomial(n, 1/2) < count) <= 0.025.
size_t left_out(size_t n) {
  double probability = std::pow(0.5, static_cast<double>(n));  // of exactly k below the median
  double sum = probability;
  size_t count = 0;
  while (sum <= 0.025) {
    ++count;
    probability *= static_cast<double>(n - count + 1) / static_cast<double>(count);
    sum += probability;
  }
  return count;
}

}  // namespace

MedianInterval median_interval(std::vector<double> values) {
  SLUICE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  // Sorted from 0, the k-th smallest is values[k - 1], with k = left_out(n) at least 1.
  const size_t k = std::max<size_t>(1, left_out(n));
  return {.median = median(values), .low = values[k - 1], .high = values[n - k]};
}

}  // namespace sluice::bench
