#include "apps/nvme_bench/latency.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice::nvme_bench {
namespace {

// Values below 64 ns have a bucket each; from there on every doubling is cut in 64.
constexpr int kBits = 6;

size_t bucket_of(uint64_t ns) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(ns)) - 1 - kBits);
  return (static_cast<size_t>(shift) << kBits) + static_cast<size_t>(ns >> shift);
}

uint64_t largest_of(size_t bucket) {
  if (bucket < (size_t{2} << kBits)) return bucket;
  const auto shift = static_cast<int>(bucket >> kBits) - 1;
  const uint64_t first = bucket - (static_cast<size_t>(shift) << kBits);
  return ((first + 1) << shift) - 1;
}

}  // namespace

void LatencyHistogram::add(double seconds) {
  const auto ns = static_cast<uint64_t>(std::llround(std::clamp(seconds, 0.0, 1e9) * 1e9));
  const size_t bucket = bucket_of(ns);
  if (bucket >= counts_.size()) counts_.resize(bucket + 1);
  ++counts_[bucket];
  ++count_;
  largest_ns_ = std::max(largest_ns_, ns);
}

double LatencyHistogram::percentile_seconds(double percent) const {
  if (count_ == 0) return 0;
  const auto rank =
      std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(percent / 100 * static_cast<double>(count_))));
  uint64_t seen = 0;
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    seen += counts_[bucket];
    if (seen >= rank) return static_cast<double>(std::min(largest_of(bucket), largest_ns_)) * 1e-9;
  }
  return largest_seconds();
}

std::vector<std::pair<double, double>> LatencyHistogram::distribution() const {
  std::vector<std::pair<double, double>> points;
  uint64_t seen = 0;
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    if (counts_[bucket] == 0) continue;
    seen += counts_[bucket];
    points.emplace_back(static_cast<double>(std::min(largest_of(bucket), largest_ns_)) * 1e-9,
                        static_cast<double>(seen) / static_cast<double>(count_));
  }
  return points;
}

}  // namespace sluice::nvme_bench
