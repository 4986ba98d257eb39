// The draws of random.h, by vectors, once per instruction set.

#if defined(SLUICE_CPU_OPTIM_RANDOM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_OPTIM_RANDOM_INL_H
#undef SLUICE_CPU_OPTIM_RANDOM_INL_H
#else
#define SLUICE_CPU_OPTIM_RANDOM_INL_H
#endif

#include "cpu_optim/random.h"
#include "cpu_optim/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

// A lane for an even element and the next.
struct DrawVecs {
  BitsVec weight, first_moment, second_moment;
};

HWY_INLINE DrawVecs draws_of(BitsVec hash) {
  BitsVec second = hn::Mul(hash, hn::Set(BitsTag(), kHashFactors[2]));
  second = hn::Xor(second, hn::ShiftRight<16>(second));
  return {hash, second, hn::Xor(hash, second)};
}

// Of the elements from an even one on, all under the same keys.
HWY_INLINE BitsVec hash_of(RandomKeys keys, uint64_t element) {
  const BitsTag d;
  BitsVec hash = hn::Add(hn::Iota(d, 0), hn::Set(d, static_cast<uint32_t>(element / 2) + keys.first));
  hash = hn::Mul(hn::Xor(hash, hn::ShiftRight<16>(hash)), hn::Set(d, kHashFactors[0]));
  hash = hn::Xor(hash, hn::Xor(hn::ShiftRight<15>(hash), hn::Set(d, keys.second)));
  return hn::Mul(hash, hn::Set(d, kHashFactors[1]));
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#endif
