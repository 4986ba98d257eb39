#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "apps/common/drive.h"

namespace sluice {

// How the engine should use a drive and what it then gets, as nvme_bench measured it. A value.
struct DriveSettings {
  std::string queue = "io_uring";            // or "threads"
  uint64_t block_bytes = uint64_t{1} << 20;  // of a transfer
  uint64_t bytes_in_flight = uint64_t{8} << 20;
  double read_bytes_per_second = 0;    // alone
  double write_bytes_per_second = 0;   // alone
  double mixed_bytes_per_second = 0;   // half of them read, half written, at once; the sum of both
  double read_cpu_seconds_per_gb = 0;  // of this process, kernel included; 10^9 bytes
  double write_cpu_seconds_per_gb = 0;
  std::string measured_at;  // UTC, "2026-11-30T12:00:00Z"
};

// $XDG_CACHE_HOME/sluice/drives.json, else ~/.cache/sluice/drives.json; empty where neither is known.
std::filesystem::path drive_settings_path();

// What was last measured on the drive behind the folder. Empty where it never was, and where the file cannot
// be read or holds anything unlikely: it is a cache, and whoever asks must do without. Throws Error(usage)
// where there is no such folder.
std::optional<DriveSettings> find_drive_settings(const std::filesystem::path& folder);

// As above, of a known drive and file.
std::optional<DriveSettings> load_drive_settings(const std::filesystem::path& file, const Drive& drive);
// Replaces the drive's entry and keeps the others; makes the folder (0700). Atomic, and safe beside other
// processes that do the same.
void save_drive_settings(const std::filesystem::path& file, const Drive& drive,
                         const DriveSettings& settings);

}  // namespace sluice
