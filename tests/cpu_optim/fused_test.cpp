// fused of cpu_optim/fused-inl.h has the bits of std::fma on every instruction set, also those without one.
#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "tests/cpu_optim/nasty_values.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/cpu_optim/fused_test.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "cpu_optim/fused-inl.h"
#include "hwy/highway.h"
#include "tests/cpu_optim/simd_targets_for_test.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu_optim {
namespace HWY_NAMESPACE {

// `count` is a multiple of every vector's lanes.
void fuse(const float* a, const float* b, const float* c, float* result, size_t count) {
  const FloatTag d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(fused(hn::LoadU(d, a + i), hn::LoadU(d, b + i), hn::LoadU(d, c + i)), d, result + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice::cpu_optim
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu_optim {
namespace {

HWY_EXPORT(fuse);

void expect_fma(std::vector<float> a, std::vector<float> b, std::vector<float> c) {
  for (auto* values : {&a, &b, &c}) values->resize((a.size() + 63) / 64 * 64);
  for_each_target([&](int64_t) {
    std::vector<float> result(a.size());
    HWY_DYNAMIC_DISPATCH(fuse)(a.data(), b.data(), c.data(), result.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const float expected = std::fma(a[i], b[i], c[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(result[i]));
      } else {
        ASSERT_EQ(bits(result[i]), bits(expected)) << a[i] << " * " << b[i] << " + " << c[i];
      }
    }
  });
}

TEST(Fused, NastyValues) {
  std::vector<float> values = nasty_finite(), a, b, c;
  values.insert(values.end(), {-0.0f, -1.0f, -3.0f, HUGE_VALF, -HUGE_VALF, NAN, 0x1.fffffep127f});
  for (const float x : values) {
    for (const float y : values) {
      for (const float z : values) a.push_back(x), b.push_back(y), c.push_back(z);
    }
  }
  expect_fma(a, b, c);
}

// Sums that are halfway between two floats but for bits that a double has no room for: rounded to a double
// first, they would be a tie.
TEST(Fused, RoundsOnce) {
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<float> mantissa(1, 2);
  std::vector<float> a, b, c;
  for (int i = 0; i < 100'000; ++i) {
    const float sign = i % 2 == 0 ? 1.0f : -1.0f, place = std::ldexp(1.0f, i % 60 - 30);
    a.push_back(sign * 0x1p-40f), b.push_back(mantissa(random)), c.push_back(mantissa(random));
    // An odd multiple of 2^-23, and almost 2^-24 more or less: (1 + 2^-23) * (1 - 2^-23) is 1 - 2^-46.
    a.push_back(1 + 0x1p-23f), b.push_back(sign * 0x1p-24f * (1 - 0x1p-23f) * place);
    c.push_back((1 + 0x1p-23f * static_cast<float>(2 * i + 1)) * place);
    // Down to subnormal results.
    a.push_back(std::ldexp(mantissa(random), -70)),
        b.push_back(sign * std::ldexp(mantissa(random), -70 - i % 20));
    c.push_back(std::ldexp(mantissa(random), -130 - i % 18));
  }
  int64_t twice_rounded = 0;  // what the test is about does occur
  for (size_t i = 0; i < a.size(); ++i) {
    const auto by_double = static_cast<float>(double{a[i]} * b[i] + c[i]);
    twice_rounded += by_double != std::fma(a[i], b[i], c[i]) ? 1 : 0;
  }
  EXPECT_GT(twice_rounded, 1000);
  expect_fma(a, b, c);
}

}  // namespace
}  // namespace sluice::cpu_optim
#endif  // HWY_ONCE
