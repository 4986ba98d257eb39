#include "apps/common/drive.h"

#include <gtest/gtest.h>
#include <sys/statfs.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

TEST(Mounts, AreReadAsTheKernelWritesThem) {
  const auto mount = parse_mount(
      "36 35 98:0 /mnt1 /mnt/two\\040words\\134 rw,noatime master:1 shared:2 - ext4 /dev/root "
      "rw,errors=continue");
  ASSERT_TRUE(mount);
  EXPECT_EQ(mount->id, 36);
  EXPECT_EQ(mount->mount_point, "/mnt/two words\\");
  EXPECT_EQ(mount->file_system, "ext4");
  EXPECT_EQ(mount->source, "/dev/root");
  EXPECT_EQ(parse_mount("6 1 254:0 / / rw - ext4 /dev/vda rw")->mount_point, "/");
  for (const char* line :
       {"", "x", "36 35", "36 35 98:0 / / rw shared:1", "36 35 98:0 / / rw -", "- - - - - - - -"})
    EXPECT_FALSE(parse_mount(line)) << line;
}

TEST(Drives, AreTheSameFromEachOfTheirFolders) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "inner");
  const Drive drive = identify_drive(folder.path());
  EXPECT_FALSE(drive.key.empty());
  EXPECT_EQ(identify_drive(folder / "inner").key, drive.key);
  EXPECT_FALSE(describe(drive).empty());
}

TEST(Drives, OfMemoryAreKnown) {
  struct statfs system {};
  constexpr long kTmpfs = 0x01021994;  // statfs(2)
  if (::statfs("/dev/shm", &system) != 0 || system.f_type != kTmpfs)
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const Drive drive = identify_drive("/dev/shm");
  EXPECT_EQ(drive.kind, Drive::Kind::memory);
  EXPECT_TRUE(drive.disk.empty());
  EXPECT_NE(drive.key, identify_drive("/proc").key);
}

TEST(Drives, NeedAFolder) {
  const test::TemporaryFolder folder;
  test::write_all(folder / "file", "x");
  test::expect_error(ErrorKind::usage, {"missing"}, [&] { identify_drive(folder / "missing"); });
  test::expect_error(ErrorKind::usage, {"not a folder"}, [&] { identify_drive(folder / "file"); });
}

}  // namespace
}  // namespace sluice
