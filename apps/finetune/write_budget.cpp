#include "apps/finetune/write_budget.h"

#include <algorithm>

namespace sluice::finetune {

WriteBudget::WriteBudget(const DiskUse& use, std::optional<uint64_t> limit_bytes, uint64_t at_start_bytes)
    : use_(use), limit_bytes_(limit_bytes), planned_bytes_(use.written_before + at_start_bytes) {}

bool WriteBudget::allows_step(int64_t steps, uint64_t written_bytes) const {
  return fits(written_bytes, rest(steps)) ||
         fits(written_bytes, use_.written_per_step + use_.written_per_save);
}

bool WriteBudget::allows_result(bool saved, uint64_t written_bytes) const {
  return fits(written_bytes, (saved ? 0 : use_.written_per_save) + use_.export_bytes);
}

bool WriteBudget::fits(uint64_t written_bytes, uint64_t more_bytes) const {
  if (!limit_bytes_) return true;
  // Where more was written than planned, one update more may be under way than was counted.
  const uint64_t pending = written_bytes > planned_bytes_ ? use_.written_per_step : 0;
  return std::max(written_bytes, planned_bytes_) + pending + more_bytes <= *limit_bytes_;
}

uint64_t WriteBudget::rest(int64_t steps) const {
  const auto left = static_cast<uint64_t>(std::max<int64_t>(0, use_.steps - steps));
  return left * use_.written_per_step +
         static_cast<uint64_t>(use_.saves_after(steps)) * use_.written_per_save + use_.export_bytes +
         use_.written_per_save;
}

}  // namespace sluice::finetune
