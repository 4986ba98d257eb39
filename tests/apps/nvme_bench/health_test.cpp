#include "apps/nvme_bench/health.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace sluice::nvme_bench {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A /sys and a /dev as kernels lay them out, with files for devices.
class HealthTest : public ::testing::Test {
 protected:
  void add_disk(const std::string& name, const fs::path& device) const {
    fs::create_directories(folder_ / "sys/block");
    fs::create_directories(device);
    fs::create_directories(device / name);
    fs::create_directory_symlink(device, device / name / "device");
    fs::create_directory_symlink(device / name, folder_ / "sys/block" / name);
  }
  void add_controller(const std::string& name, const std::string& sensor) const {
    const fs::path device = folder_ / "sys/devices" / name;
    fs::create_directories(device / "hwmon3");
    test::write_all(device / "hwmon3/temp1_input", sensor);
    fs::create_directories(folder_ / "sys/class/nvme");
    fs::create_directory_symlink(device, folder_ / "sys/class/nvme" / name);
  }
  DeviceFolders folders() const { return {.sys = folder_ / "sys", .dev = folder_ / "dev"}; }

  const test::TemporaryFolder folder_;
};

TEST_F(HealthTest, FindsTheControllerAndItsSensor) {
  add_controller("nvme3", "41850\n");
  add_disk("nvme3n1", folder_ / "sys/devices/nvme3");
  const std::vector<Health> found = read_health("nvme3n1", folders());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].device, "nvme3");
  EXPECT_DOUBLE_EQ(found[0].temperature_celsius.value(), 41.85);
  EXPECT_FALSE(found[0].log);
  EXPECT_THAT(found[0].reason, HasSubstr("cannot open"));
  EXPECT_THAT(found[0].reason, HasSubstr("dev/nvme3"));
  EXPECT_THAT(health_text(found[0], found[0]), HasSubstr("42 -> 42 C"));
}

TEST_F(HealthTest, AsksOnlyDevices) {
  add_controller("nvme0", "x");
  add_disk("nvme0n1", folder_ / "sys/devices/nvme0");
  fs::create_directories(folder_ / "dev");
  test::write_all(folder_ / "dev/nvme0", "precious");
  const std::vector<Health> found = read_health("nvme0n1", folders());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].temperature_celsius);
  EXPECT_THAT(found[0].reason, HasSubstr("is no device"));
  EXPECT_EQ(test::read_all(folder_ / "dev/nvme0"), "precious");
}

TEST_F(HealthTest, FollowsMultipathAndVolumes) {
  add_controller("nvme0", "30000");
  add_controller("nvme1", "50000");
  const fs::path subsystem = folder_ / "sys/devices/nvme-subsys0";
  add_disk("nvme0n1", subsystem);
  fs::create_directory_symlink(folder_ / "sys/devices/nvme0", subsystem / "nvme0");
  add_disk("nvme1n1", folder_ / "sys/devices/nvme1");
  // A volume over the first disk and a partition of the second.
  const fs::path partition = folder_ / "sys/devices/nvme1/nvme1n1/nvme1n1p2";
  fs::create_directories(partition);
  test::write_all(partition / "partition", "2\n");
  fs::create_directories(folder_ / "sys/class/block");
  fs::create_directory_symlink(partition, folder_ / "sys/class/block/nvme1n1p2");
  fs::create_directories(folder_ / "sys/block/dm-0/slaves/nvme0n1");
  fs::create_directories(folder_ / "sys/block/dm-0/slaves/nvme1n1p2");
  const std::vector<Health> found = read_health("dm-0", folders());
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].device, "nvme0");
  EXPECT_EQ(found[1].device, "nvme1");
  EXPECT_EQ(found[1].temperature_celsius, 50);
}

TEST_F(HealthTest, OfOtherDrivesSaysWhyThereIsNone) {
  add_disk("sda", folder_ / "sys/devices/ata1");
  const std::vector<Health> found = read_health("sda", folders());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].reason, HasSubstr("sda is no NVMe drive"));
  EXPECT_THAT(read_health("", folders()), IsEmpty());
}

TEST(HealthText, TellsLifeAndWhatThisRunTook) {
  Health before{.device = "nvme0", .temperature_celsius = 40.6, .log = SmartLog{}, .reason = ""};
  before.log->used_percent = 3;
  before.log->available_spare_percent = 100;
  before.log->data_units_written = {.low = 24'000'000};
  Health after = before;
  after.temperature_celsius = 58.2;
  after.log->data_units_written = {.low = 24'400'000};
  const std::string text = health_text(before, after);
  EXPECT_THAT(text, HasSubstr("nvme0: 41 -> 58 C, 3 % of its life used, spare 100 %"));
  EXPECT_THAT(text, HasSubstr("12.5 TB written in its life, 205 GB of it now"));
  EXPECT_THAT(text, Not(HasSubstr("WARNING")));
  after.log->critical_warning = 2;
  EXPECT_THAT(health_text(before, after), HasSubstr("WARNING: its temperature is out of range"));
}

}  // namespace
}  // namespace sluice::nvme_bench
