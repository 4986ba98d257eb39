#include "engine/schedule/simulate.h"

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

constexpr SimOptions kOnce{.step_count = 1};

std::vector<std::string> critical_labels(const std::vector<SimTask>& tasks, const Timeline& timeline) {
  std::vector<std::string> labels;
  for (const int span : timeline.critical_path)
    labels.push_back(tasks[static_cast<size_t>(timeline.spans[static_cast<size_t>(span)].task)].label);
  return labels;
}

const Timeline::Span& span_of(const Timeline& timeline, int step, int task) {
  for (const Timeline::Span& span : timeline.spans)
    if (span.step == step && span.task == task) return span;
  throw std::runtime_error("no such span");
}

TEST(Simulate, NothingTakesNoTime) {
  const Timeline timeline = simulate({}, kOnce);
  EXPECT_EQ(timeline.end_seconds, 0);
  EXPECT_EQ(timeline.step_seconds, 0);
  EXPECT_TRUE(timeline.critical_path.empty());
}

// Weights of three layers come in (2 s each) under the compute of the layer before (3 s each).
TEST(Simulate, LanesOverlap) {
  const std::vector<SimTask> tasks = {
      {.lane = Lane::copy_in, .seconds = 2, .label = "in 0"},
      {.lane = Lane::compute, .seconds = 3, .after = {0}, .label = "forward 0"},
      {.lane = Lane::copy_in, .seconds = 2, .label = "in 1"},
      {.lane = Lane::compute, .seconds = 3, .after = {2}, .label = "forward 1"},
      {.lane = Lane::copy_in, .seconds = 2, .label = "in 2"},
      {.lane = Lane::compute, .seconds = 3, .after = {4}, .label = "forward 2"}};
  const Timeline timeline = simulate(tasks, kOnce);
  EXPECT_EQ(timeline.end_seconds, 11);
  EXPECT_EQ(timeline.step_seconds, 11);
  EXPECT_EQ(timeline.busy_seconds[Lane::compute], 9);
  EXPECT_EQ(timeline.busy_seconds[Lane::copy_in], 6);
  EXPECT_EQ(timeline.critical_seconds[Lane::compute], 9);
  EXPECT_EQ(timeline.critical_seconds[Lane::copy_in], 2);
  EXPECT_EQ(critical_labels(tasks, timeline),
            (std::vector<std::string>{"in 0", "forward 0", "forward 1", "forward 2"}));
  EXPECT_EQ(timeline.bottleneck(), Lane::compute);
  EXPECT_EQ(name(timeline.bottleneck()), "compute");
}

// The same with one slot: a copy waits until the compute before has left it. Nothing overlaps.
TEST(Simulate, SlotsAreDependencies) {
  const std::vector<SimTask> tasks = {{.lane = Lane::copy_in, .seconds = 2},
                                      {.lane = Lane::compute, .seconds = 3, .after = {0}},
                                      {.lane = Lane::copy_in, .seconds = 2, .after = {1}},
                                      {.lane = Lane::compute, .seconds = 3, .after = {2}}};
  const Timeline timeline = simulate(tasks, kOnce);
  EXPECT_EQ(timeline.end_seconds, 10);
  EXPECT_EQ(timeline.critical_path.size(), 4u);
}

TEST(Simulate, ALaneKeepsItsOrder) {
  const std::vector<SimTask> tasks = {{.lane = Lane::copy_in, .seconds = 5},
                                      {.lane = Lane::compute, .seconds = 1, .after = {0}},
                                      {.lane = Lane::compute, .seconds = 1}};  // ready at 0, but behind
  const Timeline timeline = simulate(tasks, kOnce);
  EXPECT_EQ(span_of(timeline, 0, 1).begin, 5);
  EXPECT_EQ(span_of(timeline, 0, 2).begin, 6);
}

// A write that waits for its data lets reads submitted after it pass, though both share the disk.
TEST(Simulate, ReadsAndWritesTakeTurnsOnOneDisk) {
  const std::vector<SimTask> tasks = {
      {.lane = Lane::optimizer, .seconds = 3},
      {.lane = Lane::disk_write, .seconds = 4, .after = {0}},
      {.lane = Lane::disk_read, .seconds = 2},
      {.lane = Lane::disk_read, .seconds = 2},   // 2 .. 4
      {.lane = Lane::disk_read, .seconds = 2}};  // the write is ready since 3, this since 0: both begin at 4
  const Timeline one = simulate(tasks, kOnce);
  EXPECT_EQ(span_of(one, 0, 2).begin, 0);
  EXPECT_EQ(span_of(one, 0, 3).begin, 2);
  EXPECT_EQ(span_of(one, 0, 1).begin, 4);
  EXPECT_EQ(span_of(one, 0, 4).begin, 8);
  EXPECT_EQ(one.end_seconds, 10);
  const Timeline apart = simulate(tasks, {.step_count = 1, .disk = DiskQueue::apart});
  EXPECT_EQ(apart.end_seconds, 7);
  EXPECT_EQ(span_of(apart, 0, 1).begin, 3);
  EXPECT_EQ(span_of(apart, 0, 4).begin, 4);
}

// Two layers forward and backward; their updates run under the next forward, the lower one first.
std::vector<SimTask> deferred_update(double forward, double backward, double update) {
  return {{.lane = Lane::compute, .seconds = forward, .after_last_step = {4}, .label = "forward 0"},
          {.lane = Lane::compute, .seconds = forward, .after_last_step = {5}, .label = "forward 1"},
          {.lane = Lane::compute, .seconds = backward, .label = "backward 1"},
          {.lane = Lane::compute, .seconds = backward, .label = "backward 0"},
          {.lane = Lane::optimizer, .seconds = update, .after = {3}, .label = "update 0"},
          {.lane = Lane::optimizer, .seconds = update, .after = {3}, .label = "update 1"}};
}

// T_bwd + T_fwd and the first layer's update, which nothing hides: 8 + 4 + 1; the other's is hidden.
TEST(Simulate, DeferredUpdateHidesUnderTheNextForward) {
  const std::vector<SimTask> tasks = deferred_update(2, 4, 1);
  const Timeline timeline = simulate(tasks);
  EXPECT_EQ(span_of(timeline, 0, 3).end, 12);
  EXPECT_EQ(span_of(timeline, 0, 4).end, 13);
  EXPECT_EQ(span_of(timeline, 1, 0).begin, 13);
  EXPECT_EQ(span_of(timeline, 1, 1).begin, 15);  // its update ended at 14
  EXPECT_EQ(span_of(timeline, 1, 3).end, 25);
  EXPECT_EQ(timeline.step_seconds, 13);
  EXPECT_EQ(timeline.busy_seconds[Lane::compute], 12);
  EXPECT_EQ(timeline.busy_seconds[Lane::optimizer], 2);
  EXPECT_EQ(timeline.bottleneck(), Lane::compute);
}

// T_bwd + T_opt and the last layer's forward: 2 + 10 + 1.
TEST(Simulate, LongUpdateIsTheBottleneck) {
  const Timeline timeline = simulate(deferred_update(1, 1, 5));
  EXPECT_EQ(timeline.step_seconds, 13);
  EXPECT_EQ(timeline.critical_seconds[Lane::optimizer], 10);
  EXPECT_EQ(timeline.critical_seconds[Lane::compute], 3);
  EXPECT_EQ(timeline.bottleneck(), Lane::optimizer);
}

// Two steps in a row, the steady state being their difference, is what one more step costs.
TEST(Simulate, SteadyStateIsTheDifferenceOfTwoSteps) {
  const std::vector<SimTask> tasks = deferred_update(2, 4, 7);
  const Timeline one = simulate(tasks, kOnce);
  const Timeline two = simulate(tasks, {.step_count = 2});
  EXPECT_EQ(two.step_seconds, two.end_seconds - one.end_seconds);
  EXPECT_EQ(simulate(tasks).step_seconds, two.step_seconds);
  EXPECT_EQ(one.step_seconds, one.end_seconds);
}

// Of any program: lanes do one thing at a time, nothing begins before what it comes after, the critical path
// has no gaps, and a step takes no less than its busiest lane.
TEST(Simulate, RandomProgramsObeyTheRules) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::minstd_rand random(seed);
    const auto pick = [&](size_t count) { return static_cast<int>((random() >> 4) % count); };
    std::vector<SimTask> tasks(static_cast<size_t>(1 + pick(40)));
    for (size_t i = 0; i < tasks.size(); ++i) {
      tasks[i].lane = static_cast<Lane>(pick(kLaneCount));
      tasks[i].seconds = pick(5);
      for (int k = pick(3); k > 0 && i > 0; --k) tasks[i].after.push_back(pick(i));
      if (pick(4) == 0) tasks[i].after_last_step.push_back(pick(tasks.size()));
    }
    const Timeline timeline = simulate(tasks);
    ASSERT_EQ(timeline.spans.size(), tasks.size() * 8);
    PerLane<double> free;
    double disk_free = 0;
    for (const Timeline::Span& span : timeline.spans) {
      const SimTask& task = tasks[static_cast<size_t>(span.task)];
      EXPECT_EQ(span.end, span.begin + task.seconds);
      EXPECT_GE(span.begin, free[task.lane]);
      free[task.lane] = span.end;
      if (task.lane == Lane::disk_read || task.lane == Lane::disk_write) {
        EXPECT_GE(span.begin, disk_free);
        disk_free = span.end;
      }
      for (const int before : task.after) EXPECT_GE(span.begin, span_of(timeline, span.step, before).end);
      if (span.step == 0) continue;
      for (const int before : task.after_last_step)
        EXPECT_GE(span.begin, span_of(timeline, span.step - 1, before).end);
    }
    double at = 0;
    for (const int index : timeline.critical_path) {
      const Timeline::Span& span = timeline.spans[static_cast<size_t>(index)];
      EXPECT_EQ(span.begin, at);
      at = span.end;
    }
    EXPECT_EQ(at, timeline.end_seconds);
    double critical = 0;
    for (const double seconds : timeline.critical_seconds.values) critical += seconds;
    EXPECT_DOUBLE_EQ(critical, timeline.step_seconds);
  }
}

using SimulateDeathTest = testing::Test;

TEST(SimulateDeathTest, TasksComeAfterEarlierOnesOnly) {
  const std::vector<SimTask> circle = {{.seconds = 1, .after = {0}, .label = "forward layers.3"}};
  EXPECT_DEATH((void)simulate(circle), "forward layers.3");
}

}  // namespace
}  // namespace sluice
