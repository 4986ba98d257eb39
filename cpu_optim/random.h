#pragma once

#include <cstdint>

#include "cpu_optim/state_format.h"

// What stochastic rounding draws: by counter, so that a draw is a function of seed, step and element, and the
// same on every instruction set, chunk and thread. An even element and the next share a counter: 16 bits are
// enough to round an fp32 to bf16 exactly in proportion.
//
// A counter of 64 bits is hashed in 32: its upper half goes into the keys. The hash is Wellons' bijection
// (github.com/skeeto/hash-prospector, constants of bias 0.107, public domain) with a key before each
// multiplication, and without its last shift, as the halves are used apart: every instruction set has its
// operations, while AES rounds on more than 128 bits are AVX-512 extensions.
namespace sluice::cpu_optim {

// SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): every bit of the input reaches every one of
// the result.
constexpr uint64_t mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// Of a run's seed and an optimizer step.
constexpr uint64_t random_key_of(uint64_t seed, int64_t step) {
  return mixed(mixed(seed) + static_cast<uint64_t>(step));
}

// Elements whose counters have the same upper half, and so the same keys.
inline constexpr uint64_t kKeyedElements = uint64_t{1} << 33;

struct RandomKeys {
  uint32_t first = 0, second = 0;

  RandomKeys(uint64_t random_key, uint64_t element) {
    const uint64_t bits = mixed(random_key + element / kKeyedElements);
    first = static_cast<uint32_t>(bits) & ~1u;  // two counters keep their place as neighbours
    second = static_cast<uint32_t>(bits >> 32);
  }
};

inline constexpr uint32_t kHashFactors[] = {0x21f0aaadu, 0xd35a2d97u, 0x9e3779b1u};
// Of counters: odd, 2^32 over the golden ratio. Without it lower halves of hashes some powers of two apart
// are correlated by up to 3 %. It costs nothing, as the next counter's product is a sum.
inline constexpr uint32_t kCounterFactor = 0x9e3779b9u;

inline uint32_t hash_of(RandomKeys keys, uint32_t counter) {
  uint32_t hash = (counter + keys.first) * kCounterFactor;
  hash = (hash ^ (hash >> 16)) * kHashFactors[0];
  return (hash ^ (hash >> 15) ^ keys.second) * kHashFactors[1];
}

// Another, of which no half is correlated with one of `hash`.
constexpr uint32_t second_hash(uint32_t hash) {
  hash *= kHashFactors[2];
  return hash ^ (hash >> 16);
}

// The random bits of one element. Of each hash an even element takes the upper bits for its second moment and
// the lower for its first, and the odd one after it the other way round; the weight's bits are those of the
// neighbouring counter's hash. So each is uniform, no two of an element are correlated, nor are those of one
// stream, and a hash, whose cost is what bounds the small formats, serves six.
struct Draws {
  uint32_t weight = 0, moments = 0;  // hashes
  bool odd = false;

  // Uniform below 2^16, and below 2^20. The latter two share 8 bits, the lowest of one and the highest of the
  // other: a correlation of 2^-12.
  uint32_t weight16() const { return odd ? weight & 0xffff : weight >> 16; }
  uint32_t first16() const { return odd ? moments >> 16 : moments & 0xffff; }
  uint32_t second16() const { return odd ? moments & 0xffff : moments >> 16; }
  uint32_t first20() const { return odd ? moments >> 12 : moments & 0xfffff; }
  uint32_t second20() const { return odd ? moments & 0xfffff : moments >> 12; }
};

// The definition; random-inl.h computes it by vectors. `random_key` is AdamStep's.
inline Draws draws(uint64_t random_key, uint64_t element) {
  const RandomKeys keys(random_key, element);
  const auto counter = static_cast<uint32_t>(element / 2);
  return {hash_of(keys, counter ^ 1), hash_of(keys, counter), element % 2 != 0};
}

// Those of int8: a counter serves the elements of either half of a record, by two hashes that change places.
inline Draws record_draws(uint64_t random_key, uint64_t element) {
  constexpr auto kHalf = static_cast<uint64_t>(kInt8Block / 2);
  const bool second_half = element / kHalf % 2 != 0;
  const uint32_t first = hash_of(RandomKeys(random_key, element),
                                 static_cast<uint32_t>((second_half ? element - kHalf : element) / 2));
  const uint32_t second = second_hash(first);
  return {second_half ? first : second, second_half ? second : first, element % 2 != 0};
}

}  // namespace sluice::cpu_optim
