#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/finetune/train_setup.h"

namespace sluice::finetune {

// What a run takes of its drives: room, and the bytes that it reads and writes there. Page cache, event log
// and manifests apart (these are small: 8 bytes for each MiB or less of states).
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
  int64_t save_interval = 0;      // steps; 0: none on the way
  bool saved_at_end = false;
  int64_t steps_before = 0;     // of them, done by earlier parts of the run
  uint64_t written_before = 0;  // likewise

  // Of those still to be made after so many steps.
  int64_t saves_after(int64_t done) const;
  int64_t saves() const { return saves_after(steps_before); }
  // Of the whole run; empty where the steps are unknown.
  std::optional<uint64_t> written_per_run() const;
  // What --ssd_write_limit must allow: that, and one save more, so that an interruption loses nothing.
  std::optional<uint64_t> limit_wanted() const;
  // While steps follow one another, saves included; 0 where no time is known.
  uint64_t written_per_day(double step_seconds) const;
  // The run goes on after so many steps. `moved`: to other drives, where all states are written anew.
  void go_on_after(int64_t done, uint64_t written_bytes, bool moved);
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

// Whether the drives have room, and --ssd_write_limit allows what the run writes (limit_wanted): throws
// Error(resource).
// Returns a warning where only an interrupted run would lack room, else an empty text. `state_is_there`: the
// run goes on with the files that it has.
std::string check_disk(const TrainOptions& options, const DiskUse& use, bool state_is_there);

// For `plan`: a table's lines, and the same for programs.
std::string disk_table(const DiskUse& use, double step_seconds);
nlohmann::ordered_json disk_json(const DiskUse& use);
// In one line; empty where nothing is on disk while the run goes on.
std::string disk_summary(const DiskUse& use);

}  // namespace sluice::finetune
