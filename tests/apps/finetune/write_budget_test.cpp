#include "apps/finetune/write_budget.h"

#include <gtest/gtest.h>

namespace sluice::finetune {
namespace {

// Ten steps of 100 bytes, 1000 at the start, saves of 50 after 4, 8 and the last, a result of 200.
DiskUse use() {
  return {.export_bytes = 200,
          .scratch_bytes = 300,
          .written_per_step = 100,
          .written_at_start = 1000,
          .written_per_save = 50,
          .steps = 10,
          .save_interval = 4,
          .saved_at_end = true};
}
constexpr uint64_t kRun = 1000 + 10 * 100 + 3 * 50 + 200;

TEST(DiskUses, CountTheSavesOfARun) {
  EXPECT_EQ(use().saves(), 3);
  EXPECT_EQ(use().saves_after(3), 3);
  EXPECT_EQ(use().saves_after(4), 2);  // that one is made
  EXPECT_EQ(use().saves_after(8), 1);
  EXPECT_EQ(use().saves_after(9), 1);
  EXPECT_EQ(use().saves_after(10), 0);
  DiskUse other = use();
  other.save_interval = 5;  // the last one is that of the end
  EXPECT_EQ(other.saves(), 2);
  other.save_interval = 0;
  EXPECT_EQ(other.saves(), 1);
  other.saved_at_end = false;
  EXPECT_EQ(other.saves(), 0);
  EXPECT_EQ(DiskUse{}.saves(), 0);
}

TEST(DiskUses, AddUpToARun) {
  EXPECT_EQ(use().written_per_run(), kRun);
  EXPECT_EQ(use().limit_wanted(), kRun + 50);
  EXPECT_FALSE(DiskUse{.written_per_step = 1}.written_per_run());
  EXPECT_FALSE(DiskUse{.written_per_step = 1}.limit_wanted());
  DiskUse resumed = use();
  resumed.go_on_after(6, 5000, false);
  EXPECT_EQ(resumed.written_per_run(), 5000u + 300 + 4 * 100 + 2 * 50 + 200);
  DiskUse moved = use();
  moved.go_on_after(6, 5000, true);
  EXPECT_EQ(moved.written_per_run(), 5000u + 1000 + 4 * 100 + 2 * 50 + 200);
  EXPECT_EQ(use().written_per_day(2), (100 + 50 / 4.0) / 2 * 86400);
  EXPECT_EQ(use().written_per_day(0), 0u);
}

// Walks a run that writes `per_step` and `per_save` bytes: the steps that it may make, and what it has
// written when it ends, the result included where that may be written.
struct Walked {
  int64_t steps = 0;
  uint64_t written = 0;
  bool done = false;
};
Walked walk(uint64_t limit, uint64_t per_step, uint64_t per_save) {
  WriteBudget budget(use(), limit, use().written_at_start);
  Walked run{.written = use().written_at_start};
  int64_t saved_step = 0;
  while (run.steps < use().steps && budget.allows_step(run.steps, run.written)) {
    ++run.steps;
    run.written += per_step;
    budget.count_step();
    if (run.steps % use().save_interval == 0 && run.steps < use().steps) {
      run.written += per_save;
      budget.count_save();
      saved_step = run.steps;
    }
  }
  const bool saved = saved_step == run.steps;
  run.done = run.steps == use().steps && budget.allows_result(saved, run.written);
  if (!saved) run.written += per_save;  // at the end, or as it is stopped
  if (run.done) run.written += use().export_bytes;
  return run;
}

TEST(WriteBudgets, LetAnAcceptedRunThrough) {
  const Walked run = walk(*use().limit_wanted(), 100, 50);
  EXPECT_TRUE(run.done);
  EXPECT_EQ(run.written, kRun);
  EXPECT_TRUE(walk(~uint64_t{0}, 1'000'000, 1'000'000).done);
}

TEST(WriteBudgets, StopBeforeTheLimitWhateverItIs) {
  for (const uint64_t per_step : {90, 100, 130}) {
    for (uint64_t limit = 1050; limit < 3000; ++limit) {
      const Walked run = walk(limit, per_step, 50);
      if (run.steps == 0) continue;
      // A first step that writes more than planned is not foreseen.
      ASSERT_LE(run.written, limit + (per_step > 100 ? per_step - 100 : 0)) << per_step << " " << limit;
      if (!run.done && per_step == 100 && run.steps < use().steps) {
        ASSERT_GT(run.written + 100 + 50, limit) << "one more would have gone";
      }
    }
  }
}

TEST(WriteBudgets, WithoutALimitAllowEverything) {
  const WriteBudget budget(use(), {}, 0);
  EXPECT_TRUE(budget.allows_step(0, ~uint64_t{0} / 2));
  EXPECT_TRUE(budget.allows_result(false, ~uint64_t{0} / 2));
}

TEST(WriteBudgets, NeedNoSaveWhereThereIsOne) {
  const WriteBudget budget(use(), 1000 + 200, 1000);
  EXPECT_TRUE(budget.allows_result(true, 1000));
  EXPECT_FALSE(budget.allows_result(false, 1000));
}

}  // namespace
}  // namespace sluice::finetune
