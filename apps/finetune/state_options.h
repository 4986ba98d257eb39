#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/option_table.h"
#include "engine/schedule/plan.h"
#include "io/make_io_queue.h"

namespace sluice::finetune {

// Where the state of a training run lives, and how it is saved. None of these changes a number. A value.
struct StateOptions {
  std::optional<uint64_t> host_memory;  // bytes; empty: as much as it takes
  std::vector<std::string> spill_dirs;  // one a drive; empty: nothing is on disk while the run goes on
  Spill spill = Spill::automatic;
  LayerInputs layer_inputs = LayerInputs::automatic;
  IoChoice::Engine io = IoChoice::Engine::automatic;
  double io_timeout = 120;                  // seconds until a transfer counts as late; 0: never
  std::optional<int64_t> save_steps;        // empty: see save_interval()
  std::optional<uint64_t> ssd_write_limit;  // bytes of the whole run, resumed parts included
  bool resume = false;
  bool allow_different_kernels = false;
  std::optional<int64_t> stop_after;  // tests: as if SIGTERM had come during this step

  bool spills() const { return !spill_dirs.empty(); }
  // Steps from one saved generation to the next; 0: only when interrupted and at the end. With the state on
  // disk already a generation costs little; without, it is as large as three copies of the model in fp32.
  int64_t save_interval() const { return save_steps.value_or(spills() ? kSpillSaveSteps : 0); }
  static constexpr int64_t kSpillSaveSteps = 50;
};

// The options are `options`' members, which must outlive the table.
void add_state(OptionTable& table, StateOptions& options);
// What no single option can tell. Throws Error(usage).
void check_state(const StateOptions& options);
// For the event log.
nlohmann::ordered_json state_json(const StateOptions& options);

}  // namespace sluice::finetune
