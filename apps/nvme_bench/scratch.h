#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/striped_file.h"

namespace sluice::nvme_bench {

// Thrown where the user's signal ends a measurement.
struct Interrupted {};

// `sluice-nvme-bench-PID` in the folder.
std::filesystem::path scratch_path(const std::filesystem::path& folder);
// A file of that name in each part's folder, which loses the name at once: nothing stays behind however the
// process ends. Throws as StripedFile::create does.
StripedFile create_scratch(std::vector<StripedFile::Part> parts, uint64_t size_bytes);
// fdatasync: the seconds that it takes.
double timed_sync(StripedFile& file);

// Of the file system that holds a folder.
struct Room {
  uint64_t size_bytes = 0;
  uint64_t free_bytes = 0;  // to this user
  // What long writes must leave: a tenth of the file system, at most 100 GB. A full drive is slow, and others
  // write to it, too.
  uint64_t reserve_bytes() const;
  uint64_t usable_bytes() const;
};
Room room_at(const std::filesystem::path& folder);

}  // namespace sluice::nvme_bench
