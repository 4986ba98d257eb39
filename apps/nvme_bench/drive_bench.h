#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/drive.h"
#include "apps/common/drive_settings.h"
#include "apps/nvme_bench/health.h"
#include "apps/nvme_bench/measure.h"
#include "apps/nvme_bench/options.h"
#include "apps/nvme_bench/proof.h"
#include "apps/nvme_bench/sustained.h"

namespace sluice::nvme_bench {

struct SweepPoint {
  size_t block_bytes = 0;
  size_t bytes_in_flight = 0;
  double read_bytes_per_second = 0;  // median of the rounds; 0: not measured
  double write_bytes_per_second = 0;
};

struct QueueRate {
  std::string queue;
  double read_bytes_per_second = 0, write_bytes_per_second = 0;
};

// With another share of reads than half.
struct MixedRate {
  double read_share = 0;
  Measurement measurement;
};

// What small reads wait (Measurement::probe_latency) while a load runs.
struct LoadedLatency {
  std::string load;  // a traffic's name, or kNoLoad
  Measurement measurement;
};
inline constexpr const char* kNoLoad = "none";

// All that was found out about one drive.
struct DriveResult {
  std::string folder;
  Drive drive;
  uint64_t file_bytes = 0;        // that were written before, and are then measured
  Measurement first_write;        // preallocated, never written: slower
  std::vector<QueueRate> queues;  // that could be had
  std::string queue;              // the one that was used
  std::vector<SweepPoint> sweep;
  SweepPoint chosen;
  std::map<Traffic, Measurement> measurements;  // with the chosen settings
  std::vector<MixedRate> mixes;                 // likewise, as --mixed asks
  std::vector<LoadedLatency> loaded;            // likewise
  std::optional<SustainedWrite> sustained;      // then all of the above was not asked for
  Proof proof;
  std::optional<DriveSettings> settings;  // empty where nothing is proven, or not all traffic was measured
  std::vector<Health> health_before, health_after;  // of each device that the drive lies on
  bool interrupted = false;                         // what is missing was not measured
};

struct Callbacks {
  std::function<void(const std::string&)> say = [](const std::string&) {};  // a line about what goes on
  std::function<bool()> stop = [] { return false; };
};

// The file has no name from its creation on, so nothing stays behind however the process ends. Throws
// Error(resource) without room, other Errors as they come. Where the user's signal ends it, the result says
// so and has what there is, the measurement under way included.
DriveResult bench_drive(const Options& options, const std::string& folder, const Callbacks& callbacks);

// The point that the engine should use: the least time to read and write a byte, but 1 MiB with 8 MiB in
// flight, else the fewest bytes in flight, where that is within 5 % (what rounds scatter).
SweepPoint choose_point(const std::vector<SweepPoint>& sweep);

}  // namespace sluice::nvme_bench
