// The program `nvme_bench` from outside: what it prints, how it ends, and that it leaves nothing behind.
#include <csignal>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/statfs.h>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/xml_check.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NvmeBenchTest : public ::testing::Test {
 protected:
  using Arguments = std::vector<std::string>;

  // Small and short. The settings go into a folder of the test's own.
  Arguments arguments(const std::filesystem::path& folder, const Arguments& more = {}) const {
    Arguments all{test::program_path("nvme_bench"),
                  "--folder",
                  folder,
                  "--quick",
                  "--size=16MiB",
                  "--depth",
                  "2MiB,4MiB",
                  "--block_size=1MiB",
                  "--seconds=0.05"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  bool use_cache() const { return ::setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1) == 0; }
  test::Outcome run(const Arguments& all) const {
    return test::ChildProcess(all, [this] { return use_cache(); }).finish();
  }

  const test::TemporaryFolder folder_, cache_;
};

TEST_F(NvmeBenchTest, PrintsJsonAndLeavesNothing) {
  const test::Outcome outcome = run(arguments(folder_.path(), {"--json"}));
  // Under tests the folder may lie on a tmpfs: then there is a report too, and no verdict.
  const json report = json::parse(outcome.out);
  const json& drive = report["drives"].at(0);
  const bool reached = drive["proof"]["reached_drive"];
  EXPECT_EQ(outcome.code, reached ? 0 : 1) << outcome.err;
  for (const char* traffic : {"read", "write", "mixed"}) {
    const json& measurement = drive["measurements"][traffic];
    EXPECT_GT(measurement["gb_per_second"], 0) << traffic;
    EXPECT_GE(measurement["latency_ms"]["p99"], measurement["latency_ms"]["p50"]);
    EXPECT_GE(measurement["latency_ms"]["max"], measurement["latency_ms"]["p99"]);
    EXPECT_EQ(measurement["gb_per_second_by_tenth"].size(), 10u);
  }
  EXPECT_EQ(drive["measurements"]["read"]["written_bytes"], 0);
  EXPECT_EQ(drive["sweep"].size(), 2u);
  EXPECT_EQ(drive["file_bytes"], 16 << 20);
  EXPECT_EQ(drive["settings"].is_null(), !reached);
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
  if (!reached) GTEST_SKIP() << "no direct I/O in " << folder_.path() << ": " << drive["proof"]["doubt"];
  const json saved = json::parse(test::read_all(cache_ / "sluice/drives.json"));
  EXPECT_EQ(saved["drives"][drive["key"].get<std::string>()]["block_bytes"], 1 << 20);
}

TEST_F(NvmeBenchTest, MeasuresSeveralDrivesTogether) {
  const test::TemporaryFolder other;
  const test::Outcome outcome = run(arguments(folder_.path().string() + "," + other.path().string(),
                                              {"--json", "--save=false", "--queue=threads"}));
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report["drives"].size(), 2u);
  EXPECT_GT(report["together"]["mixed"]["gb_per_second"], 0);
  ASSERT_EQ(report["beside"].size(), 2u);
  for (const json& drive : report["beside"]) EXPECT_GT(drive["mixed"]["gb_per_second"], 0);
  EXPECT_THAT(outcome.err, HasSubstr("lie on one drive"));
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
  EXPECT_THAT(test::list_all(other.path()), IsEmpty());
  EXPECT_THAT(test::list_all(cache_.path()), IsEmpty());
}

TEST_F(NvmeBenchTest, EndsWithASignalAndLeavesNothing) {
  for (const int number : {SIGTERM, SIGINT, SIGKILL}) {
    test::ChildProcess child(arguments(folder_.path(), {"--seconds=3600", "--json"}),
                             [this] { return use_cache(); });
    ASSERT_TRUE(child.wait_for_error_text("measuring read"));
    child.send_signal(number);
    const test::Outcome outcome = child.finish();
    EXPECT_EQ(outcome.code, number == SIGKILL ? -SIGKILL : 128 + number) << outcome.err;
    EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
    EXPECT_THAT(test::list_all(cache_.path()), IsEmpty());
    if (number == SIGKILL) continue;
    const json report = json::parse(outcome.out);
    EXPECT_EQ(report["interrupted"], true);
    const json& drive = report["drives"].at(0);
    EXPECT_TRUE(drive["measurements"].contains("read"));
    EXPECT_FALSE(drive["measurements"].contains("write"));
    EXPECT_EQ(drive["sweep"].size(), 2u);
    EXPECT_TRUE(drive["settings"].is_null());
  }
}

TEST_F(NvmeBenchTest, DrawsAndMeasuresSmallReadsUnderLoad) {
  const std::string svg = cache_ / "drives.svg";
  const test::Outcome outcome = run(
      arguments(folder_.path(), {"--json", "--save=false", "--load_latency", "--mixed=0.7", "--svg", svg}));
  const json report = json::parse(outcome.out);
  const json& drive = report["drives"].at(0);
  for (const char* load : {"none", "read", "write", "mixed"}) {
    const json& loaded = drive["load_latency"][load];
    EXPECT_GT(loaded["probes"], 0) << load;
    EXPECT_GE(loaded["latency_ms"]["p99.9"], loaded["latency_ms"]["p50"]);
    EXPECT_TRUE(drive["fio"].contains(std::string("latency_") + load));
  }
  EXPECT_EQ(drive["load_latency"]["none"]["gb_per_second"], 0);
  ASSERT_EQ(drive["mixes"].size(), 1u);
  EXPECT_EQ(drive["mixes"][0]["read_share"], 0.7);
  EXPECT_TRUE(drive["sustained"].is_null());
  for (const json& health : drive["health_after"])
    EXPECT_NE(health["smart"].is_null(), health["reason"] == "") << health;
  EXPECT_EQ(report["svg"], svg);
  const std::string picture = test::read_all(svg);
  EXPECT_EQ(test::xml_fault(picture), "");
  for (const char* text : {"rate, GB/s", "time, s", "latency, ms", ">70 % reads<", ">4 KiB beside mixed<"})
    EXPECT_THAT(picture, HasSubstr(text));
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
}

TEST_F(NvmeBenchTest, WritesOnAndOn) {
  const Arguments all = arguments(folder_.path(), {"--sustained=64MiB"});
  const test::Outcome text = run(all);
  EXPECT_THAT(text.out, HasSubstr("64 MiB in"));
  EXPECT_THAT(text.out, HasSubstr("4.00 times over a file of 16 MiB"));
  EXPECT_THAT(text.out, HasSubstr("steady rate"));
  Arguments timed = arguments(folder_.path(), {"--json", "--sustained=0.3s"});
  const json drive = json::parse(run(timed).out)["drives"].at(0);
  EXPECT_GE(drive["sustained"]["measurement"]["seconds"], 0.3);
  EXPECT_GT(drive["sustained"]["steady_gb_per_second"], 0);
  EXPECT_TRUE(drive["settings"].is_null());
  EXPECT_TRUE(drive["measurements"].empty());
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
  EXPECT_THAT(test::list_all(cache_.path()), IsEmpty());

  test::ChildProcess child(arguments(folder_.path(), {"--json", "--sustained=1h"}),
                           [this] { return use_cache(); });
  ASSERT_TRUE(child.wait_for_error_text("writing on and on"));
  child.send_signal(SIGINT);
  const test::Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out)["drives"].at(0)["interrupted"], true);
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
}

TEST_F(NvmeBenchTest, SaysThatATmpfsIsNoDrive) {
  struct statfs system {};
  constexpr long kTmpfs = 0x01021994;  // statfs(2)
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != kTmpfs)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  std::string name = "/dev/shm/sluice_test_XXXXXX";
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const test::Outcome outcome = run(arguments(name));
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("tmpfs keeps its files in RAM"));
  EXPECT_THAT(outcome.out, HasSubstr("NOT PROVEN"));
  EXPECT_THAT(test::list_all(cache_.path()), IsEmpty());
  EXPECT_TRUE(std::filesystem::remove(name));  // empty again
}

TEST_F(NvmeBenchTest, SaysWhatIsWrong) {
  const auto expect_failure = [&](const Arguments& all, int code, const std::string& text) {
    const test::Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_THAT(outcome.out, IsEmpty());
  };
  expect_failure(arguments(folder_.path(), {"--blok_size=1MiB"}), 2, "Did you mean --block_size?");
  expect_failure(arguments(folder_ / "missing"), 2, "missing");
  expect_failure({test::program_path("nvme_bench"), "--folder", folder_ / "missing"}, 2, "missing");
  expect_failure(arguments(folder_.path(), {"--size=1000TiB"}), 4, "not enough disk space");
  expect_failure(arguments("/dev/null"), 2, "is not a folder");
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
}

TEST_F(NvmeBenchTest, FailsLikeAFullDiskAtTheFileSizeLimit) {
  const test::Outcome outcome = test::ChildProcess(arguments(folder_.path()), [this] {
                                  const rlimit limit{1 << 20, 1 << 20};
                                  return use_cache() && ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
                                }).finish();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(test::list_all(folder_.path()), IsEmpty());
}

TEST_F(NvmeBenchTest, Explains) {
  const test::Outcome help = run({test::program_path("nvme_bench"), "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("--quick"));
}

}  // namespace
}  // namespace sluice
