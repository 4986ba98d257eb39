#include "apps/finetune/verdicts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::finetune {
namespace {

using testing::HasSubstr;

constexpr size_t kGiB = size_t{1} << 30;

Plan plan_of(size_t device, size_t host) {
  Plan plan;
  plan.parts = {{"weights", Tier::host, host, 0}, {"workspace", Tier::device, device, 0}};
  return plan;
}

TEST(Verdicts, MemoryCountsTheDeviceWhereItIsRam) {
  const Plan plan = plan_of(3 * kGiB, 2 * kGiB);
  MemoryFacts facts{.machine_bytes = 4 * kGiB, .free_bytes = 4 * kGiB};
  const Verdict both = judge_memory(plan, facts);
  EXPECT_FALSE(both.go);
  facts.device_is_ram = false;
  EXPECT_TRUE(judge_memory(plan, facts).go);
  facts.free_bytes = kGiB;
  const Verdict busy = judge_memory(plan, facts);
  EXPECT_TRUE(busy.go);
  EXPECT_THAT(busy.text, HasSubstr("only 1.00 GiB are free"));
}

TEST(Verdicts, EachFileSystemNeedsItsRoom) {
  const std::vector<RoomWanted> rooms{{"/a", kGiB, 2 * kGiB, "the result"},
                                      {"/b", 3 * kGiB, kGiB, "the states"}};
  const Verdict verdict = judge_room(rooms);
  EXPECT_FALSE(verdict.go);
  EXPECT_THAT(verdict.would_go, HasSubstr("2.00 GiB more room at /b"));
  EXPECT_TRUE(judge_room(std::span(rooms).first(1)).go);
  EXPECT_TRUE(judge_room({}).go);
}

TEST(Verdicts, EnduranceIsHeldAgainstTheLimit) {
  // 1 GiB in 1.024 s is 84375 GiB a day.
  DiskUse use{.export_bytes = kGiB, .written_per_step = kGiB, .steps = 99};
  const Verdict within = judge_endurance(use, 100 * kGiB, 1.024);
  EXPECT_TRUE(within.go);
  EXPECT_THAT(within.text, HasSubstr("82.4 TiB a day, 100.0 GiB in the run"));
  ++use.export_bytes;
  const Verdict over = judge_endurance(use, 100 * kGiB, 1.024);
  EXPECT_FALSE(over.go);
  EXPECT_THAT(over.would_go, HasSubstr("--ssd_write_limit 101GiB"));
  // An interruption's save must fit, too.
  use.written_per_save = kGiB;
  EXPECT_FALSE(judge_endurance(use, 101 * kGiB, 1).go);
  EXPECT_TRUE(judge_endurance(use, 102 * kGiB, 1).go);
  EXPECT_THAT(judge_endurance(use, {}, 1).text, HasSubstr("no --ssd_write_limit"));
  use.steps = 0;
  const Verdict unknown = judge_endurance(use, kGiB, 1);
  EXPECT_TRUE(unknown.go);
  EXPECT_THAT(unknown.text, HasSubstr("not held against"));
}

TEST(Verdicts, TimeSaysHowLongAndWhatIsAssumed) {
  Forecast forecast{.tokens = 512, .steps = 3600, .disk_assumed = true};
  forecast.step.step_seconds = 2;
  const Verdict verdict = judge_time(forecast);
  EXPECT_TRUE(verdict.go);
  EXPECT_THAT(verdict.text, HasSubstr("2 h 0 min for 3600 step(s)"));
  EXPECT_THAT(verdict.text, HasSubstr("assumed"));
  forecast.steps = 0;
  EXPECT_THAT(judge_time(forecast).text, HasSubstr("--max_steps"));
}

TEST(Verdicts, OneNoGoIsEnough) {
  const std::vector<Verdict> verdicts{
      {.about = "memory", .text = "fine"},
      {.about = "disk space", .go = false, .text = "full", .would_go = "more"}};
  EXPECT_FALSE(all_go(verdicts));
  EXPECT_EQ(verdict_table(verdicts), "memory: go (fine)\ndisk space: no-go (full)\n  would go: more\n");
  EXPECT_EQ(verdicts_json(verdicts)["disk space"]["verdict"], "no-go");
}

TEST(Verdicts, SecondsAreReadable) {
  EXPECT_EQ(format_seconds(4.26), "4.3 s");
  EXPECT_EQ(format_seconds(81.6), "81.6 s");
  EXPECT_EQ(format_seconds(60 * 42), "42 min");
  EXPECT_EQ(format_seconds(3600 * 30 + 300), "30 h 5 min");
  EXPECT_EQ(format_seconds(86400 * 3 + 3600), "3 d 1 h");
}

}  // namespace
}  // namespace sluice::finetune
