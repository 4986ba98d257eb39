#include "apps/finetune/data/sampler.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Four rounds make a strong pseudo-random permutation (Luby and Rackoff, 1988); small domains want some more.
constexpr int kRounds = 8;

// splitmix64 (Steele, Lea and Flood, 2014).
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

}  // namespace

Sampler::Sampler(int64_t row_count, uint64_t seed) : row_count_(row_count), seed_(seed) {
  SLUICE_CHECK(row_count > 0);
  const auto bits = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(row_count - 1)));
  half_bits_ = std::max(1u, (bits + 1) / 2);
}

int64_t Sampler::row(int64_t epoch, int64_t position) const {
  SLUICE_CHECK(position >= 0 && position < row_count_);
  std::array<uint64_t, kRounds> keys;
  uint64_t key = mix(mix(seed_) ^ static_cast<uint64_t>(epoch));
  for (uint64_t& round_key : keys) round_key = key = mix(key);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(position);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t round_key : keys) {
      const uint64_t next = left ^ (mix(right ^ round_key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(row_count_));
  return static_cast<int64_t>(value);
}

}  // namespace sluice
