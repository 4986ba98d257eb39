#include "io/stripe_map.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Largest remainder (Hamilton): whole parts first, what is left over to the largest fractions.
std::vector<uint64_t> apportion(std::span<const double> weights, uint64_t total) {
  double sum = 0;
  for (double weight : weights) {
    SLUICE_CHECK(std::isfinite(weight) && weight > 0, "a drive's weight must be positive");
    sum += weight;
  }
  std::vector<uint64_t> shares;
  std::vector<double> remainders;
  for (double weight : weights) {
    const double quota = weight / sum * static_cast<double>(total);
    shares.push_back(static_cast<uint64_t>(quota));
    remainders.push_back(quota - std::floor(quota));
  }
  std::vector<size_t> order(weights.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  // Fewer are left over than there are files, but rounding may break a tie of quotas either way.
  uint64_t dealt = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
  for (size_t i = 0; dealt < total; ++i, ++dealt) ++shares[order[i % order.size()]];
  return shares;
}

}  // namespace

StripeMap::StripeMap(std::span<const double> weights) : shares_(apportion(weights, kPeriod)) {
  SLUICE_CHECK(!weights.empty() && weights.size() <= 256);
  std::vector<uint64_t> dealt(shares_.size());
  for (uint64_t i = 0; i < kPeriod; ++i) {
    // Behind by share * (i + 1) / kPeriod - dealt; in whole numbers, so that no machine rounds differently.
    const auto behind = [&](size_t file) {
      return static_cast<int64_t>(shares_[file] * (i + 1)) - static_cast<int64_t>(dealt[file] * kPeriod);
    };
    size_t furthest = 0;
    for (size_t file = 1; file < shares_.size(); ++file)
      if (behind(file) > behind(furthest)) furthest = file;
    files_.push_back(static_cast<uint8_t>(furthest));
    ranks_.push_back(static_cast<uint16_t>(dealt[furthest]++));
  }
}

StripeMap::Place StripeMap::place(uint64_t stripe) const {
  const uint64_t i = stripe % kPeriod;
  const size_t file = files_[i];
  return {file, stripe / kPeriod * shares_[file] + ranks_[i]};
}

uint64_t StripeMap::count(size_t file, uint64_t stripe_count) const {
  const auto end = files_.begin() + static_cast<ptrdiff_t>(stripe_count % kPeriod);
  const auto rest = std::count(files_.begin(), end, static_cast<uint8_t>(file));
  return stripe_count / kPeriod * shares_[file] + static_cast<uint64_t>(rest);
}

}  // namespace sluice
