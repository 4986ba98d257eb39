#include "apps/common/drive_settings.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using nlohmann::json;

Drive drive_named(const std::string& key) {
  Drive drive;
  drive.key = key;
  drive.file_system = "ext4";
  return drive;
}

DriveSettings likely_settings() {
  return {.queue = "threads",
          .block_bytes = 512 << 10,
          .bytes_in_flight = 16 << 20,
          .read_bytes_per_second = 3.25e9,
          .write_bytes_per_second = 2.5e9,
          .mixed_bytes_per_second = 2.75e9,
          .read_cpu_seconds_per_gb = 0.05,
          .write_cpu_seconds_per_gb = 0,
          .measured_at = "2026-11-30T12:00:00Z"};
}

class DriveSettingsTest : public ::testing::Test {
 protected:
  std::filesystem::path file() const { return folder_ / "sluice" / "drives.json"; }
  // Writes the text in place of what was saved, and reads it.
  std::optional<DriveSettings> load(const std::string& text) const {
    test::write_all(file(), text);
    return load_drive_settings(file(), drive_);
  }

  const test::TemporaryFolder folder_;
  const Drive drive_ = drive_named("259:1 00ff");
};

TEST_F(DriveSettingsTest, ComeBackAsTheyWereSaved) {
  EXPECT_FALSE(load_drive_settings(file(), drive_));
  const DriveSettings saved = likely_settings();
  save_drive_settings(file(), drive_, saved);
  const std::optional<DriveSettings> found = load_drive_settings(file(), drive_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->queue, saved.queue);
  EXPECT_EQ(found->block_bytes, saved.block_bytes);
  EXPECT_EQ(found->bytes_in_flight, saved.bytes_in_flight);
  EXPECT_EQ(found->read_bytes_per_second, saved.read_bytes_per_second);
  EXPECT_EQ(found->write_bytes_per_second, saved.write_bytes_per_second);
  EXPECT_EQ(found->mixed_bytes_per_second, saved.mixed_bytes_per_second);
  EXPECT_EQ(found->read_cpu_seconds_per_gb, saved.read_cpu_seconds_per_gb);
  EXPECT_EQ(found->write_cpu_seconds_per_gb, saved.write_cpu_seconds_per_gb);
  EXPECT_EQ(found->measured_at, saved.measured_at);
  EXPECT_EQ(test::list_all(file().parent_path()), std::vector<std::string>{"drives.json"});
  struct stat info {};
  ASSERT_EQ(::stat(file().parent_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(DriveSettingsTest, OfOtherDrivesStay) {
  DriveSettings settings = likely_settings();
  save_drive_settings(file(), drive_named("a"), settings);
  settings.block_bytes = 1 << 20;
  save_drive_settings(file(), drive_named("b"), settings);
  settings.block_bytes = 2 << 20;
  save_drive_settings(file(), drive_named("b"), settings);
  EXPECT_EQ(load_drive_settings(file(), drive_named("a"))->block_bytes, 512u << 10);
  EXPECT_EQ(load_drive_settings(file(), drive_named("b"))->block_bytes, 2u << 20);
  EXPECT_FALSE(load_drive_settings(file(), drive_named("c")));
}

TEST_F(DriveSettingsTest, SavedAtOnceAllArrive) {
  constexpr int kWriters = 8;
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back(
        [&, i] { save_drive_settings(file(), drive_named(std::to_string(i)), likely_settings()); });
  }
  for (std::thread& writer : writers) writer.join();
  for (int i = 0; i < kWriters; ++i)
    EXPECT_TRUE(load_drive_settings(file(), drive_named(std::to_string(i)))) << i;
}

TEST_F(DriveSettingsTest, UnlikelyOnesAreNone) {
  save_drive_settings(file(), drive_, likely_settings());
  const json good = json::parse(test::read_all(file()));
  ASSERT_TRUE(load(good.dump()));
  const std::vector<std::pair<std::string, json>> changes{
      {"queue", "spdk"},
      {"queue", 3},
      {"queue", nullptr},
      {"block_bytes", 0},
      {"block_bytes", -4096},
      {"block_bytes", 4097},
      {"block_bytes", 1e18},
      {"block_bytes", "1MiB"},
      {"block_bytes", 32 << 20},  // more than is in flight
      {"bytes_in_flight", 0},
      {"bytes_in_flight", 1ull << 60},
      {"bytes_in_flight", json::array()},
      {"read_bytes_per_second", 0},
      {"read_bytes_per_second", -1},
      {"write_bytes_per_second", 1e30},
      {"mixed_bytes_per_second", nullptr},  // what NaN is written as
      {"read_cpu_seconds_per_gb", -1},
      {"measured_at", std::string(1000, 'x')}};
  for (const auto& [name, value] : changes) {
    json changed = good;
    changed["drives"][drive_.key][name] = value;
    EXPECT_FALSE(load(changed.dump())) << name << " " << value;
    changed["drives"][drive_.key].erase(name);
    EXPECT_FALSE(load(changed.dump())) << name;
  }
}

TEST_F(DriveSettingsTest, DamagedFilesAreNoneAndAreReplaced) {
  save_drive_settings(file(), drive_, likely_settings());
  const std::string good = test::read_all(file());
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        std::string("{\"version\": 1}"), std::string("{\"version\": 1, \"drives\": []}"),
        std::string("{\"version\": 2, \"drives\": {}}"),
        std::string("{\"version\": \"1\", \"drives\": {\"259:1 00ff\": 7}}"),
        std::string("{\"version\": 1, \"drives\": {\"259:1 00ff\": 7}}"), good.substr(0, good.size() / 2),
        std::string(300'000, '['), std::string(2 << 20, ' ') + good, std::string("\xff\xfe\0x", 4)}) {
    EXPECT_FALSE(load(text)) << text.substr(0, 60);
  }
  save_drive_settings(file(), drive_, likely_settings());
  EXPECT_TRUE(load_drive_settings(file(), drive_));
}

TEST_F(DriveSettingsTest, LieInTheCacheFolder) {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("XDG_CACHE_HOME", folder_.path().c_str(), 1);
  EXPECT_EQ(drive_settings_path(), file());
  save_drive_settings(drive_settings_path(), identify_drive(folder_.path()), likely_settings());
  EXPECT_TRUE(find_drive_settings(folder_.path()));
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // to be ignored, says the specification
  EXPECT_TRUE(drive_settings_path().is_absolute());
  before != nullptr ? ::setenv("XDG_CACHE_HOME", kept.c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
}

}  // namespace
}  // namespace sluice
