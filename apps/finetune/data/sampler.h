#pragma once

#include <cstdint>

namespace sluice {

// Where a run stands in its data: what resuming needs, and all it needs.
struct DataCursor {
  int64_t epoch = 0;
  int64_t position = 0;  // rows of this epoch already given out
  bool operator==(const DataCursor&) const = default;
};

// The order of rows: a function of (seed, epoch, position) and the number of rows alone, never of threads,
// ranks or what came before. Each epoch is another permutation, computed place by place in O(1) memory: a
// Feistel network over the next even power of two, walked until it lands inside (Black and Rogaway, "Ciphers
// with arbitrary finite domains", 2002). A value; safe from any thread.
class Sampler {
 public:
  Sampler(int64_t row_count, uint64_t seed);

  // The row at `position` of `epoch`, 0 <= position < row_count.
  int64_t row(int64_t epoch, int64_t position) const;
  int64_t row_count() const { return row_count_; }

 private:
  int64_t row_count_;
  uint64_t seed_;
  uint32_t half_bits_;  // bits of each half of the network
};

}  // namespace sluice
