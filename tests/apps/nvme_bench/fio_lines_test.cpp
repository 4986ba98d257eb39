#include "apps/nvme_bench/fio_lines.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/child_process.h"
#include "tests/support/temporary_folder.h"

namespace sluice::nvme_bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

DriveResult everything(const std::string& folder) {
  DriveResult result{.folder = folder};
  result.queue = "io_uring";
  result.file_bytes = 64 * kMiB;
  result.chosen = {.block_bytes = kMiB, .bytes_in_flight = 8 * kMiB};
  for (const Traffic traffic : {Traffic::read, Traffic::write, Traffic::mixed})
    result.measurements[traffic] = {};
  result.mixes.push_back({.read_share = 0.7, .measurement = {}});
  result.loaded = {{kNoLoad, {}}, {"mixed", {}}};
  result.sustained = SustainedWrite{};
  return result;
}

Options options() {
  Options options;
  options.seconds = 5;
  options.sustained = SustainedGoal{.bytes = 300 * kMiB};
  return options;
}

std::string line(const DriveResult& result, const std::string& name) {
  for (const auto& [what, command] : fio_lines(result, options()))
    if (what == name) return command;
  return "";
}

TEST(FioLines, SayWhatWasMeasured) {
  const DriveResult result = everything("/mnt/it's");
  EXPECT_THAT(line(result, "read"),
              AllOf(HasSubstr("--filename='/mnt/it'\\''s/sluice-fio.dat'"), HasSubstr("--size=65536k"),
                    HasSubstr("--bs=1024k"), HasSubstr("--iodepth=8"), HasSubstr("--rw=read"),
                    HasSubstr("--runtime=5"), HasSubstr("--direct=1")));
  EXPECT_THAT(line(result, "mixed_70"), AllOf(HasSubstr("--rw=rw"), HasSubstr("--rwmixread=70")));
  EXPECT_THAT(line(result, "latency_mixed"),
              AllOf(HasSubstr("--name=load"), HasSubstr("--name=probe"), HasSubstr("--bs=4k")));
  EXPECT_THAT(line(result, "latency_none"), ::testing::Not(HasSubstr("--name=load")));
  EXPECT_THAT(line(result, "sustained"), AllOf(HasSubstr("--rw=write"), HasSubstr("--io_size=307200k")));
  DriveResult threads = result;
  threads.queue = "threads";
  EXPECT_THAT(line(threads, "read"), AllOf(HasSubstr("psync"), HasSubstr("--numjobs=4")));
  EXPECT_THAT(fio_lines(DriveResult{}, options()), IsEmpty());
}

TEST(FioLines, AreOnesThatFioTakes) {
  if (std::system("fio --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "fio is not installed";
  const test::TemporaryFolder folder;
  const std::string odd = folder / "it's a folder";
  std::filesystem::create_directory(odd);
  DriveResult result = everything(odd);
  for (const char* queue : {"io_uring", "threads"}) {
    result.queue = queue;
    for (const auto& [name, command] : fio_lines(result, options())) {
      const test::Outcome outcome =
          test::ChildProcess({"/bin/sh", "-c", command + " --parse-only"}, [] { return true; }).finish();
      EXPECT_EQ(outcome.code, 0) << name << ": " << command << "\n" << outcome.err << outcome.out;
    }
  }
  EXPECT_THAT(test::list_all(odd), IsEmpty());
}

}  // namespace
}  // namespace sluice::nvme_bench
