#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/train_setup.h"

namespace sluice::finetune {

// What a run takes of its drives: room, and the bytes that it reads and writes there. Page cache and
// manifests apart.
struct DiskUse {
  uint64_t export_bytes = 0;   // the result
  uint64_t state_bytes = 0;    // two generations of all states; with --spill_dir waiting gradients, too
  bool state_needed = false;   // the run makes the state's files in any case, not only when interrupted
  uint64_t scratch_bytes = 0;  // of state_bytes: the waiting gradients
  uint64_t read_per_step = 0;
  uint64_t written_per_step = 0;
  uint64_t written_at_start = 0;  // files are written once before they are used, then weights are loaded
  uint64_t written_per_save = 0;  // at most: what of the states is in RAM
  int64_t steps = 0;              // 0: unknown without data
  int64_t saves = 0;

  // Of the whole run; empty where the steps are unknown.
  std::optional<uint64_t> written_per_run() const;
};

DiskUse disk_use(const TrainOptions& options, const TrainSetup& setup, const Plan& plan);

// What is wanted of one file system, and what it has.
struct RoomWanted {
  std::string folder;
  uint64_t wanted_bytes = 0;
  uint64_t free_bytes = 0;
  std::string what;  // "3.02 GiB for the states in DIR, 257.0 MiB for the result in OUTPUT"
};
// Of all that the run cannot do without.
std::vector<RoomWanted> room_wanted(const TrainOptions& options, const DiskUse& use, bool state_is_there);

// Whether the drives have room, and --ssd_write_limit allows what the run writes: throws Error(resource).
// Returns a warning where only an interrupted run would lack room, else an empty text. `state_is_there`: the
// run goes on with the files that it has.
std::string check_disk(const TrainOptions& options, const DiskUse& use, bool state_is_there);

// For `plan`: a table's lines, and the same for programs.
std::string disk_table(const DiskUse& use);
nlohmann::ordered_json disk_json(const DiskUse& use);
// In one line; empty where nothing is on disk while the run goes on.
std::string disk_summary(const DiskUse& use);

}  // namespace sluice::finetune
