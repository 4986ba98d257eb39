#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::nvme_bench {

// Latencies of any number of transfers in a few KiB: counted in buckets of 1/64 of their value, so that a
// percentile is at most 1.6 % too high and never too low. The largest is exact.
class LatencyHistogram {
 public:
  void add(double seconds);
  uint64_t count() const { return count_; }
  // The least latency that `percent` of the transfers (nearest rank) did not exceed; 0 without transfers.
  double percentile_seconds(double percent) const;
  // (latency in seconds, share of the transfers that took no longer), both ascending, up to a share of 1.
  std::vector<std::pair<double, double>> distribution() const;
  double largest_seconds() const { return static_cast<double>(largest_ns_) * 1e-9; }

 private:
  std::vector<uint64_t> counts_;  // (bucket), as many as were needed
  uint64_t count_ = 0;
  uint64_t largest_ns_ = 0;
};

}  // namespace sluice::nvme_bench
