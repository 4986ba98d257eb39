#pragma once

#include <vector>

namespace sluice::bench {

struct MedianInterval {
  double median = 0;
  double low = 0, high = 0;  // 95 % confidence
  // Over the median: how much the rounds leave open.
  double width() const { return (high - low) / median; }
};

// The median of at least one value, with the order statistics that enclose the true median in at least 95 of
// 100 cases, whatever the distribution (binomial; Conover, Practical Nonparametric Statistics, 3.2). Below 6
// values there are none: then the interval is all of them.
MedianInterval median_interval(std::vector<double> values);

}  // namespace sluice::bench
