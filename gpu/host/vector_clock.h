#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sluice::gpu {

// For every stream, how many of its tasks come before a point (Lamport 1978; Mattern 1988). A value; streams
// beyond its length count as 0.
class VectorClock {
 public:
  uint64_t operator[](int stream) const {
    const size_t index = static_cast<size_t>(stream);
    return index < counts_.size() ? counts_[index] : 0;
  }
  uint64_t tick(int stream) {
    const size_t index = static_cast<size_t>(stream);
    if (index >= counts_.size()) counts_.resize(index + 1);
    return ++counts_[index];
  }
  // After both this point and the other.
  void join(const VectorClock& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }

 private:
  std::vector<uint64_t> counts_;
};

}  // namespace sluice::gpu
