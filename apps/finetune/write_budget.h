#pragma once

#include <cstdint>
#include <optional>

#include "apps/finetune/disk_use.h"

namespace sluice::finetune {

// Holds a run to --ssd_write_limit. What is still to be written is counted by the plan, what was written as
// it was measured, but never as less than planned: an update's writes may still be under way. A pure value.
class WriteBudget {
 public:
  // `use` is the run's plan, from its step use.steps_before on, of which use.written_before were written
  // before and `at_start_bytes` since then.
  WriteBudget(const DiskUse& use, std::optional<uint64_t> limit_bytes, uint64_t at_start_bytes);

  void count_step() { planned_bytes_ += use_.written_per_step; }
  void count_save() { planned_bytes_ += use_.written_per_save; }

  // Whether another step may be made after `steps`: the rest of the run fits the limit, or at least that step
  // and the save that it would need. `written_bytes` are those of the whole run so far.
  bool allows_step(int64_t steps, uint64_t written_bytes) const;
  // After the last step: whether a save (unless `saved`) and the result fit.
  bool allows_result(bool saved, uint64_t written_bytes) const;

 private:
  bool fits(uint64_t written_bytes, uint64_t more_bytes) const;
  uint64_t rest(int64_t steps) const;

  const DiskUse use_;
  const std::optional<uint64_t> limit_bytes_;
  uint64_t planned_bytes_;  // by now, had all gone as planned
};

}  // namespace sluice::finetune
