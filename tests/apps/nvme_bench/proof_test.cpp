#include "apps/nvme_bench/proof.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file.h"
#include "tests/support/temporary_folder.h"

namespace sluice::nvme_bench {
namespace {

using ::testing::HasSubstr;

Drive disk() {
  Drive drive;
  drive.kind = Drive::Kind::block_device;
  drive.file_system = "ext4";
  drive.disk = "nvme0n1";
  return drive;
}

Proof good_proof() {
  return {.asked = {1000, 2000},
          .process = ByteCount{1000, 2000},
          .device = ByteCount{1500, 2500},
          .residency = {.page_count = 1000, .resident_count = 3}};
}

TEST(Counts, AreReadAsTheKernelWritesThem) {
  const auto process = parse_process_io(
      "rchar: 6976\nwchar: 0\nsyscr: 10\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: "
      "8192\ncancelled_write_bytes: "
      "0\n");
  ASSERT_TRUE(process);
  EXPECT_EQ(process->read_bytes, 4096u);
  EXPECT_EQ(process->written_bytes, 8192u);
  const auto device =
      parse_device_stat("  465131 37252 16143922 6643674 168858 136940 127099112 979400 0 287516");
  ASSERT_TRUE(device);
  EXPECT_EQ(device->read_bytes, 16143922ull * 512);
  EXPECT_EQ(device->written_bytes, 127099112ull * 512);
  for (const char* text : {"", "read_bytes: x", "read_bytes: 1\n", "1 2 3"}) {
    EXPECT_FALSE(parse_process_io(text)) << text;
    EXPECT_FALSE(parse_device_stat(text)) << text;
  }
}

TEST(Doubts, AreNoneWhereEverythingWasCounted) {
  EXPECT_EQ(find_doubt(disk(), "", good_proof()), "");
  Proof proof = good_proof();
  proof.device.reset();
  EXPECT_EQ(find_doubt(disk(), "", proof), "");
  proof = good_proof();
  proof.process.reset();
  EXPECT_EQ(find_doubt(disk(), "", proof), "");
  proof = good_proof();
  proof.device = ByteCount{};  // keeps no statistics
  EXPECT_EQ(find_doubt(disk(), "", proof), "");
}

TEST(Doubts, AreSaid) {
  Drive tmpfs;
  tmpfs.kind = Drive::Kind::memory;
  tmpfs.file_system = "tmpfs";
  EXPECT_THAT(find_doubt(tmpfs, "", good_proof()), HasSubstr("tmpfs keeps its files in RAM"));
  Drive nfs;
  nfs.kind = Drive::Kind::network;
  nfs.file_system = "nfs4";
  EXPECT_THAT(find_doubt(nfs, "", good_proof()), HasSubstr("nfs4"));
  EXPECT_THAT(find_doubt(disk(), "x is not read directly", good_proof()),
              HasSubstr("buffered: x is not read directly"));

  Proof proof = good_proof();
  proof.residency.resident_count = 500;
  EXPECT_THAT(find_doubt(disk(), "", proof), HasSubstr("500 of the file's 1000 pages"));
  proof = good_proof();
  proof.process = ByteCount{0, 2000};  // every read came from a cache
  EXPECT_THAT(find_doubt(disk(), "", proof), HasSubstr("/proc/self/io"));
  proof = good_proof();
  proof.device = ByteCount{1000, 10};
  EXPECT_THAT(find_doubt(disk(), "", proof), HasSubstr("nvme0n1"));
  proof = good_proof();
  proof.process.reset();
  proof.device.reset();
  EXPECT_THAT(find_doubt(disk(), "", proof), HasSubstr("nobody counts"));
}

TEST(Residency, SeesThePageCache) {
  const test::TemporaryFolder folder;
  const std::string text(10 * 4096 + 1, 'x');
  test::write_all(folder / "file", text);
  const File file = File::open(folder / "file");
  const Residency pages = residency(file.descriptor(), text.size());
  EXPECT_EQ(pages.page_count, 11u);
  EXPECT_EQ(pages.resident_count, 11u);  // written a moment ago, through the cache
  EXPECT_EQ(residency(file.descriptor(), 0).page_count, 0u);
}

}  // namespace
}  // namespace sluice::nvme_bench
