#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::nvme_bench {

// Bytes by time, in few intervals however long it takes: where they become too many, pairs are merged.
class RateSeries {
 public:
  static constexpr size_t kMostIntervals = 240;

  static constexpr double kFirstInterval = 0.05;  // seconds

  // `seconds` since the start.
  void add(double seconds, uint64_t bytes);

  double interval_seconds() const { return interval_seconds_; }
  // Bytes per second of each interval. The last one is left out: the end cut it short.
  std::vector<double> rates() const;

 private:
  double interval_seconds_ = kFirstInterval;
  std::vector<uint64_t> bytes_;  // (interval)
};

// What a series of rates (bytes per second, over equal intervals) comes to.
struct SteadyRate {
  bool fell = false;             // to below kFall of what it was, for good
  size_t fall = 0;               // the first interval after that
  double before = 0, after = 0;  // medians, bytes per second; without a fall both of the whole
  double steady = 0;             // median of the last half of what follows the fall, or of the whole
};
inline constexpr double kFall = 0.8;

// The fall is where one step down fits the series best (least squares). Pauses that come and go are none:
// four fifths of the intervals on either side must lie on theirs of the middle between the two medians. Under
// 8 intervals nothing is said about a fall.
SteadyRate find_steady_rate(std::span<const double> rates);

}  // namespace sluice::nvme_bench
