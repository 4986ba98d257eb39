#include <cstdlib>
#include <gtest/gtest.h>
#include <iostream>
#include <set>
#include <unistd.h>

#include "tests/faults/campaign.h"

namespace sluice::test {
namespace {

constexpr uint64_t kSeeds = 2000;
constexpr uint64_t kShares = 8;  // so that several processes can share the work

class FaultCampaign : public ::testing::TestWithParam<uint64_t> {
 protected:
  static void SetUpTestSuite() {
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  }
};

TEST_P(FaultCampaign, NoFaultIsSilent) {
  Tally tally;
  for (uint64_t seed = GetParam(); seed < kSeeds; seed += kShares) {
    const Verdict verdict = run_seed(seed, Mutant::none, nullptr);
    tally.add(verdict);
    EXPECT_NE(verdict.ending, Ending::silent)
        << verdict.reason << "\nto see it again: fault_campaign --seed " << seed << " --verbose";
  }
  print(std::cout, tally);
  EXPECT_EQ(tally.seeds, kSeeds / kShares);
  // A campaign in which nothing happens would find nothing.
  EXPECT_LT(tally.untouched, tally.seeds / 2);
  EXPECT_GT(tally.endings[static_cast<size_t>(Ending::healed)], tally.seeds / 8);
  EXPECT_GT(tally.endings[static_cast<size_t>(Ending::named)], tally.seeds / 16);
}

INSTANTIATE_TEST_SUITE_P(Share, FaultCampaign, ::testing::Range(uint64_t{0}, kShares));

class FaultCampaignMutant : public ::testing::TestWithParam<size_t> {
 protected:
  static void SetUpTestSuite() { FaultCampaignMutant::keep_off_disk(); }
  static void keep_off_disk() {
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  }
};

TEST_P(FaultCampaignMutant, IsCaught) {
  const auto mutant = static_cast<Mutant>(GetParam());
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Verdict verdict = run_seed(seed, mutant, nullptr);
    if (verdict.ending != Ending::silent) continue;
    std::cout << name(mutant) << " is caught by seed " << seed << ": " << verdict.reason << "\n";
    EXPECT_NE(run_seed(seed, Mutant::none, nullptr).ending, Ending::silent) << "by the same seed, unmutated";
    return;
  }
  ADD_FAILURE() << name(mutant) << " is not caught within " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(All, FaultCampaignMutant, ::testing::Range(size_t{1}, kMutants),
                         [](const auto& param) {
                           return std::string(name(static_cast<Mutant>(param.param)));
                         });

TEST(FaultCampaignSeed, EndsTheSameEachTime) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Verdict first = run_seed(seed, Mutant::none, nullptr);
    const Verdict second = run_seed(seed, Mutant::none, nullptr);
    EXPECT_EQ(first.ending, second.ending) << seed;
    EXPECT_EQ(first.faults, second.faults) << seed;
  }
}

}  // namespace
}  // namespace sluice::test
