// What the fuzzers check, without libFuzzer: their seeds, damaged copies of them, and every input that once
// broke a promise (tests/data/fuzz/NAME).

#include <gtest/gtest.h>
#include <random>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/source_tree.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {
namespace {

class FuzzReplay : public testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzReplay, AcceptsTheSeeds) {
  const auto seeds = GetParam().seeds();
  ASSERT_FALSE(seeds.empty());
  for (size_t i = 0; i < seeds.size(); ++i)
    EXPECT_EQ(GetParam().check(seeds[i]), Verdict::accepted) << "seed " << i << ":\n" << seeds[i];
}

TEST_P(FuzzReplay, KeepsItsPromisesOnDamagedSeeds) {
  constexpr int kChangesOfASeed = 60;
  int refused_count = 0;
  for (const std::string& seed : GetParam().seeds()) {
    std::mt19937 random(1);
    for (int i = 0; i < kChangesOfASeed && !seed.empty(); ++i) {
      std::string bytes = seed;
      const size_t at = random() % seed.size();
      if (i % 3 == 0) bytes.resize(at);
      if (i % 3 == 1) bytes[at] = static_cast<char>(random() & 0xff);
      if (i % 3 == 2) bytes.insert(at, bytes, random() % seed.size(), random() % 64);
      SCOPED_TRACE("change " + std::to_string(i) + " at byte " + std::to_string(at) + " of\n" + seed);
      ASSERT_NO_THROW(refused_count += GetParam().check(bytes) == Verdict::refused);
    }
  }
  EXPECT_GT(refused_count, 0);
}

TEST_P(FuzzReplay, KeepsItsPromisesOnOldFindings) {
  const auto folder = source_folder() / "tests" / "data" / "fuzz" / GetParam().name;
  if (!std::filesystem::exists(folder)) return;  // no finding yet
  for (const std::string& name : list_all(folder))
    EXPECT_NO_THROW(GetParam().check(read_all(folder / name))) << name;
}

INSTANTIATE_TEST_SUITE_P(All, FuzzReplay, testing::ValuesIn(fuzz_targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace sluice::test
