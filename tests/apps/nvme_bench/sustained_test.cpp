#include "apps/nvme_bench/sustained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/nvme_bench/drive_bench.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice::nvme_bench {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20, kGb = 1'000'000'000;

Options parse(std::vector<std::string> words) {
  return std::get<Options>(parse_options(words));
}

TEST(Rooms, KeepATenthFree) {
  EXPECT_EQ((Room{.size_bytes = 500 * kGb, .free_bytes = 300 * kGb}).usable_bytes(), 250 * kGb);
  EXPECT_EQ((Room{.size_bytes = 500 * kGb, .free_bytes = 20 * kGb}).usable_bytes(), 0u);
  EXPECT_EQ((Room{.size_bytes = 8000 * kGb, .free_bytes = 300 * kGb}).usable_bytes(), 200 * kGb);
}

TEST(SustainedFiles, StayOutOfTheReserve) {
  const Room room{.size_bytes = 500 * kGb, .free_bytes = 300 * kGb};
  const auto size = [&](std::vector<std::string> words) {
    return sustained_file_bytes(parse(std::move(words)), room, 32 * kMiB, "here");
  };
  const auto rounded = [](uint64_t bytes) { return bytes / kMiB * kMiB; };
  EXPECT_EQ(size({"--sustained=200GB"}), rounded(200 * kGb));
  EXPECT_EQ(size({"--sustained=2TB"}), rounded(250 * kGb));
  EXPECT_EQ(size({"--sustained=1h"}), rounded(150 * kGb));  // half of what is free
  EXPECT_EQ(size({"--sustained=1h", "--size=220GB"}), rounded(220 * kGb));
  EXPECT_EQ(size({"--sustained=1h", "--size=400GB"}), rounded(250 * kGb));
  EXPECT_EQ(size({"--sustained=1s"}), rounded(15 * kGb));
  EXPECT_EQ(size({"--sustained=1MiB"}), 32 * kMiB);
}

TEST(SustainedFiles, NeedRoom) {
  const Room full{.size_bytes = 500 * kGb, .free_bytes = 50 * kGb + kMiB};
  test::expect_error(ErrorKind::resource, {"no room", "here", "stay free", "Free some space"},
                     [&] { sustained_file_bytes(parse({"--sustained=1GB"}), full, 32 * kMiB, "here"); });
}

class SustainedTest : public ::testing::Test {
 protected:
  DriveResult run(const std::string& goal, const Callbacks& callbacks = {}) const {
    const Options options =
        parse({"--sustained=" + goal, "--size=16MiB", "--depth=2MiB", "--block_size=1MiB"});
    return bench_sustained(options, folder_.path(), callbacks);
  }
  const test::TemporaryFolder folder_;
};

TEST_F(SustainedTest, WritesSoMuchRoundAndRound) {
  const DriveResult result = run("40MiB");
  ASSERT_TRUE(result.sustained);
  EXPECT_EQ(result.sustained->measurement.written_bytes, 40 * kMiB);
  EXPECT_EQ(result.sustained->file_bytes, 16 * kMiB);
  EXPECT_DOUBLE_EQ(result.sustained->passes(), 2.5);
  EXPECT_GT(result.sustained->reserve_bytes, 0u);
  EXPECT_EQ(result.proof.asked.written_bytes, 40 * kMiB);
  EXPECT_FALSE(result.interrupted);
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
}

TEST_F(SustainedTest, EndsWithWhatThereIs) {
  int asked = 0;
  const DriveResult result = run("1TiB", {.stop = [&] { return ++asked > 20; }});
  EXPECT_TRUE(result.interrupted);
  EXPECT_GT(result.sustained->measurement.written_bytes, 0u);
  EXPECT_LT(result.sustained->measurement.written_bytes, 64 * kMiB);
}

TEST(SustainedWrites, TellWhenTheyFell) {
  SustainedWrite sustained{.file_bytes = 1000};
  for (int i = 0; i < 100; ++i) sustained.measurement.rate.add((i + 0.5) * 0.05, i < 30 ? 400 : 100);
  sustained.found = find_steady_rate(sustained.measurement.rate.rates());
  ASSERT_TRUE(sustained.found.fell);
  EXPECT_NEAR(sustained.seconds_before_fall(), 1.5, 1e-9);
  EXPECT_NEAR(static_cast<double>(sustained.bytes_before_fall()), 12000, 1);
}

}  // namespace
}  // namespace sluice::nvme_bench
