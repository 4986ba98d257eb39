#pragma once

#include <cstdint>
#include <string>

#include "apps/nvme_bench/measure.h"
#include "apps/nvme_bench/scratch.h"

namespace sluice::nvme_bench {

struct Options;
struct DriveResult;
struct Callbacks;

// Writing on and on, past what a drive's cache takes in.
struct SustainedWrite {
  uint64_t file_bytes = 0;     // written round and round; the first time over is new space, a little slower
  uint64_t reserve_bytes = 0;  // that was left free on the file system
  Measurement measurement;
  SteadyRate found;

  double passes() const;
  // Written until the rate fell, and when; 0 where it did not.
  uint64_t bytes_before_fall() const;
  double seconds_before_fall() const;
};

// Of the file: what the goal takes at most, and never into the reserve. Where neither the file's nor the
// goal's size was given, no more than half of what is free, so that others on the drive go on. Throws
// Error(resource) where less than `least_bytes` are free beyond the reserve.
uint64_t sustained_file_bytes(const Options& options, const Room& room, uint64_t least_bytes,
                              const std::string& folder);

// Only that, on one drive. What is in flight must fit the room four times.
DriveResult bench_sustained(const Options& options, const std::string& folder, const Callbacks& callbacks);

}  // namespace sluice::nvme_bench
