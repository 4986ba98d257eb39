#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

// Which file holds which stripe: stripes are dealt out one by one, each to the file that is furthest behind
// its share, so that any run of neighbours is close to the weights' proportions (for two files: within one
// stripe). The deal repeats every kPeriod stripes; weights are rounded to that many parts. A pure function of
// the weights. Immutable.
class StripeMap {
 public:
  static constexpr uint64_t kPeriod = 1024;

  struct Place {
    size_t file = 0;
    uint64_t slot = 0;  // the stripe's number within the file
  };

  // Weights are finite and positive, at most 256 of them.
  explicit StripeMap(std::span<const double> weights);

  Place place(uint64_t stripe) const;
  // How many of the first `stripe_count` stripes lie in the file.
  uint64_t count(size_t file, uint64_t stripe_count) const;

 private:
  std::vector<uint64_t> shares_;  // (file) stripes a period
  std::vector<uint8_t> files_;    // (kPeriod)
  std::vector<uint16_t> ranks_;   // (kPeriod) how many of the file's own come before in the period
};

}  // namespace sluice
