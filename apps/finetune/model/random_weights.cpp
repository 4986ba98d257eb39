#include "apps/finetune/model/random_weights.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// Finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// FNV-1a, 64 bit (http://www.isthe.com/chongo/tech/comp/fnv).
uint64_t hash(std::string_view text) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return value;
}

// The middle of one of 2^53 equal parts of (0, 1).
double uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

uint64_t weight_key(uint64_t seed, std::string_view tensor) {
  return mix(mix(seed + kGolden) ^ hash(tensor));
}

// Algorithm AS 241, PPND7 (Wichura: The Percentage Points of the Normal Distribution, Applied Statistics 37,
// 1988). Unlike Box-Muller it takes one number for one, and no sine whose last bit each libm rounds its own
// way; the logarithm is for the outer 15 % only.
double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
  }
  double r = std::sqrt(-std::log(std::min(p, 1 - p)));
  double x = 0;
  if (r <= 5) {
    r -= 1.6;
    x = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5;
    x = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
        ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -x : x;
}

void fill_normal(uint64_t key, uint64_t first, double deviation, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(deviation * normal_quantile(uniform(mix(key + (first + i + 1) * kGolden))));
}

}  // namespace sluice
