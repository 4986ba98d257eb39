// The draws of random.h, by vectors, once per instruction set.

#if defined(SLUICE_CPU_OPTIM_RANDOM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_RANDOM_INL_H
#undef SLUICE_CPU_OPTIM_RANDOM_INL_H
#else
#define SLUICE_CPU_OPTIM_RANDOM_INL_H
#endif

#include <algorithm>

#include "cpu_optim/random.h"
#include "cpu_optim/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

// Elements of two counters, which must be in one pair of vectors.
inline constexpr int64_t kNeighbours = std::min<int64_t>(4, kMaxPair);

// Hashes: a lane for an even element and the next.
struct DrawVecs {
  BitsVec weight, moments;
};

HWY_INLINE BitsVec hash_of(RandomKeys keys, BitsVec counter) {
  const BitsTag d;
  BitsVec hash = hn::Mul(hn::Xor(counter, hn::ShiftRight<16>(counter)), hn::Set(d, kHashFactors[0]));
  hash = hn::Xor(hash, hn::Xor(hn::ShiftRight<15>(hash), hn::Set(d, keys.second)));
  return hn::Mul(hash, hn::Set(d, kHashFactors[1]));
}

// Products of counters, the key added, and kCounterFactor, in lanes; and what is from one vector of them to
// the next.
HWY_INLINE BitsVec counters(RandomKeys keys, uint64_t element) {
  const BitsTag d;
  const auto first = static_cast<uint32_t>(element / 2) + keys.first;
  return hn::Mul(hn::Add(hn::Iota(d, 0), hn::Set(d, first)), hn::Set(d, kCounterFactor));
}
HWY_INLINE uint32_t counters_step() {
  return static_cast<uint32_t>(hn::Lanes(BitsTag())) * kCounterFactor;
}

// Of counters of which the first is that of a multiple of kNeighbours elements, all under the same keys.
HWY_INLINE DrawVecs draws_of(RandomKeys keys, BitsVec counter) {
  const BitsVec hash = hash_of(keys, counter);
#if HWY_TARGET == HWY_SCALAR  // the neighbour's parity is that of its product
  const uint32_t to_neighbour = counter.raw % 2 == 0 ? kCounterFactor : 0 - kCounterFactor;
  return {hash_of(keys, hn::Add(counter, hn::Set(BitsTag(), to_neighbour))), hash};
#else
  return {hn::Shuffle2301(hash), hash};
#endif
}

HWY_INLINE BitsVec second_hash(BitsVec hash) {
  hash = hn::Mul(hash, hn::Set(BitsTag(), kHashFactors[2]));
  return hn::Xor(hash, hn::ShiftRight<16>(hash));
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
