#pragma once

#include <cstdint>

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
    first = static_cast<uint32_t>(bits);
    second = static_cast<uint32_t>(bits >> 32);
  }
};

inline constexpr uint32_t kHashFactors[] = {0x21f0aaadu, 0xd35a2d97u, 0x9e3779b1u};

// The random bits of one element, for each stream a word whose upper bits are an even element's and whose
// lower bits an odd one's. Each is uniform and no two are correlated; all three are functions of one hash,
// whose cost is what bounds the small formats.
struct Draws {
  uint32_t weight = 0, first_moment = 0, second_moment = 0;
  bool odd = false;

  // Uniform below 2^16, and below 2^20. The latter, of an even element and the next, share 8 bits, the lowest
  // of one and the highest of the other: a correlation of 2^-12.
  uint32_t bits16(uint32_t word) const { return odd ? word & 0xffff : word >> 16; }
  uint32_t bits20(uint32_t word) const { return odd ? word & 0xfffff : word >> 12; }
};

// The definition; random-inl.h computes it by vectors. `random_key` is AdamStep's.
inline Draws draws(uint64_t random_key, uint64_t element) {
  const RandomKeys keys(random_key, element);
  uint32_t hash = static_cast<uint32_t>(element / 2) + keys.first;
  hash = (hash ^ (hash >> 16)) * kHashFactors[0];
  hash = (hash ^ (hash >> 15) ^ keys.second) * kHashFactors[1];
  uint32_t second = hash * kHashFactors[2];
  second ^= second >> 16;
  return {hash, second, hash ^ second, element % 2 != 0};
}

}  // namespace sluice::cpu_optim
