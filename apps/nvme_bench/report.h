#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/nvme_bench/drive_bench.h"

namespace sluice::nvme_bench {

struct Report {
  std::vector<DriveResult> drives;
  std::optional<TogetherResult> together;  // of several drives
  std::filesystem::path settings_file;     // empty: nothing was written
};

// For people: tables, the proof, the settings. GB are 10^9 bytes.
std::string report_text(const Report& report);
// The same as one JSON object, a line.
std::string report_json(const Report& report);

}  // namespace sluice::nvme_bench
