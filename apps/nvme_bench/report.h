#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/together.h"

namespace sluice::nvme_bench {

struct Report {
  Options options;
  std::vector<DriveResult> drives;
  std::optional<TogetherResult> together;  // of several drives
  std::filesystem::path settings_file;     // empty: nothing was written

  // By the user: then it holds what there was.
  bool interrupted() const {
    return (together && together->interrupted) || (!drives.empty() && drives.back().interrupted);
  }
};

// For people: tables, the proof, the settings. GB are 10^9 bytes.
std::string report_text(const Report& report);
// The same as one JSON object, a line.
std::string report_json(const Report& report);

}  // namespace sluice::nvme_bench
