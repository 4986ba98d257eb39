#include "apps/nvme_bench/rate_series.h"

#include <algorithm>

#include "apps/common/median.h"
#include "engine/base/math.h"

namespace sluice::nvme_bench {
namespace {

constexpr size_t kFewest = 8;   // intervals that may show a fall
constexpr double kAgree = 0.8;  // of the intervals on a side

// The end of the first part of the two that are, each by its mean, nearest to the values. The sum of squares
// is least where sum(first)^2 / count + sum(second)^2 / count is largest.
size_t best_cut(std::span<const double> values) {
  double total = 0;
  for (const double value : values) total += value;
  size_t best = 0;
  double most = 0, sum = 0;
  for (size_t cut = 1; cut < values.size(); ++cut) {
    sum += values[cut - 1];
    const double rest = total - sum;
    const double fit =
        sum * sum / static_cast<double>(cut) + rest * rest / static_cast<double>(values.size() - cut);
    if (cut >= 2 && cut + 2 <= values.size() && fit > most) {
      most = fit;
      best = cut;
    }
  }
  return best;
}

double share_above(std::span<const double> values, double level) {
  const auto count = std::count_if(values.begin(), values.end(), [&](double value) { return value > level; });
  return static_cast<double>(count) / static_cast<double>(values.size());
}

}  // namespace

void RateSeries::add(double seconds, uint64_t bytes) {
  while (seconds >= interval_seconds_ * static_cast<double>(kMostIntervals)) {
    const size_t count = divide_up<size_t>(bytes_.size(), 2);
    for (size_t i = 0; i < count; ++i)
      bytes_[i] = bytes_[2 * i] + (2 * i + 1 < bytes_.size() ? bytes_[2 * i + 1] : 0);
    bytes_.resize(count);
    interval_seconds_ *= 2;
  }
  const auto interval = static_cast<size_t>(seconds / interval_seconds_);
  if (interval >= bytes_.size()) bytes_.resize(interval + 1);
  bytes_[interval] += bytes;
}

std::vector<double> RateSeries::rates() const {
  std::vector<double> rates;
  for (size_t i = 0; i + 1 < bytes_.size(); ++i)
    rates.push_back(static_cast<double>(bytes_[i]) / interval_seconds_);
  return rates;
}

SteadyRate find_steady_rate(std::span<const double> rates) {
  SteadyRate found;
  found.before = found.after = median(rates);
  if (rates.size() >= kFewest) {
    const size_t cut = best_cut(rates);
    const double before = median(rates.first(cut)), after = median(rates.subspan(cut));
    const double middle = (before + after) / 2;
    if (after < kFall * before && share_above(rates.first(cut), middle) >= kAgree &&
        share_above(rates.subspan(cut), middle) <= 1 - kAgree) {
      found = {.fell = true, .fall = cut, .before = before, .after = after};
    }
  }
  const std::span<const double> rest = rates.subspan(found.fall);
  found.steady = median(rest.subspan(rest.size() / 2));
  return found;
}

}  // namespace sluice::nvme_bench
