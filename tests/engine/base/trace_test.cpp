#include "engine/base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> names(const TraceLaneRecord& lane) {
  std::vector<std::string> found;
  for (const TraceSpan& span : lane.spans) found.push_back(span.name);
  return found;
}

TraceLaneRecord lane_named(const std::vector<TraceLaneRecord>& lanes, const std::string& name) {
  for (const TraceLaneRecord& lane : lanes)
    if (lane.name == name) return lane;
  return {};
}

constexpr int64_t kMs = 1'000'000;

TEST(Trace, TheSameWorkIsOneSpanUnlessThereIsAGap) {
  Trace trace;
  TraceLane& lane = trace.add_lane("compute", trace_order::kCompute);
  trace.begin_step(1);
  const WorkLabel forward{"forward", "layer 3", 1};
  lane.add(forward, "linear", 0, kMs, 10);
  lane.add(forward, "rope", kMs + TraceLane::kGapNs, 2 * kMs, 5);
  lane.add(forward, "rope", 2 * kMs + TraceLane::kGapNs + 1, 3 * kMs, 0);
  lane.add({"forward", "layer 3", 2}, "rope", 3 * kMs, 4 * kMs, 0);
  lane.add({}, "rope", 4 * kMs, 5 * kMs, 0);
  const TraceLaneRecord found = lane_named(trace.stop(), "compute");
  ASSERT_THAT(names(found), ElementsAre("forward layer 3", "forward layer 3", "forward layer 3", "rope"));
  EXPECT_EQ(found.spans[0].end_ns, 2 * kMs);
  EXPECT_EQ(found.spans[0].busy_ns, 2 * kMs - TraceLane::kGapNs);
  EXPECT_EQ(found.spans[0].bytes, 15u);
  EXPECT_EQ(found.spans[0].task_count, 2);
  EXPECT_EQ(found.spans[2].step, 2);
}

TEST(Trace, SpansOfALaneNeverOverlap) {
  Trace trace;
  TraceLane& lane = trace.add_lane("disk", trace_order::kDisk);
  trace.begin_step(1);
  lane.add({"read", "a", 1}, "", 0, 3 * kMs, 1);
  lane.add({"read", "b", 1}, "", kMs, 4 * kMs, 1);      // in flight together
  lane.add({"read", "c", 1}, "", 2 * kMs, 3 * kMs, 1);  // seen late: it ended before
  const TraceLaneRecord found = lane_named(trace.stop(), "disk");
  ASSERT_EQ(found.spans.size(), 3u);
  EXPECT_EQ(found.spans[1].begin_ns, 3 * kMs);
  EXPECT_EQ(found.spans[2].begin_ns, 4 * kMs);
  EXPECT_EQ(found.spans[2].end_ns, 4 * kMs);
}

TEST(Trace, AWaitCutsTheTaskInWhichItIs) {
  Trace trace;
  TraceLane& lane = trace.add_lane("optimizer", trace_order::kHost);
  trace.begin_step(1);
  const int64_t before = trace_now_ns();
  lane.begin_task({"update", "layer 0", 1}, "adamw");
  const int64_t begin = trace_now_ns() + kMs, end = begin + kMs;
  lane.add_wait("wait for disk", begin - kMs / 2, begin - kMs / 2 + TraceLane::kShortestWaitNs - 1);
  lane.add_wait("wait for disk", begin, end);
  lane.end_task(7);
  const TraceLaneRecord found = lane_named(trace.stop(), "optimizer");
  ASSERT_THAT(names(found), ElementsAre("update layer 0", "wait for disk", "update layer 0"));
  EXPECT_GE(found.spans[0].begin_ns, before);
  EXPECT_EQ(found.spans[0].end_ns, begin);
  EXPECT_EQ(found.spans[1].end_ns, end);
  EXPECT_EQ(found.spans[2].begin_ns, end);
  EXPECT_EQ(found.spans[2].bytes, 7u);
}

std::vector<int64_t> steps_kept(const TraceWindow& window, int64_t first, int64_t last,
                                int64_t* dropped_count) {
  Trace trace(window);
  TraceLane& lane = trace.add_lane("compute", trace_order::kCompute);
  for (int64_t step = first; step <= last; ++step) {
    trace.begin_step(step);
    lane.add({"forward", "a", step}, "", step * kMs, step * kMs + 1, 0);
    lane.add({"backward", "a", step}, "", step * kMs + 2, step * kMs + 3, 0);
  }
  const TraceLaneRecord found = lane_named(trace.stop(), "compute");
  *dropped_count = found.dropped_count;
  std::vector<int64_t> steps;
  for (const TraceSpan& span : found.spans)
    if (steps.empty() || steps.back() != span.step) steps.push_back(span.step);
  EXPECT_EQ(found.spans.size(), 2 * steps.size());
  return steps;
}

TEST(Trace, KeepsTheFirstAndTheNewestSteps) {
  int64_t dropped = 0;
  EXPECT_THAT(steps_kept({.first = 1, .last = 2, .newest = 2}, 1, 10, &dropped), ElementsAre(1, 2, 9, 10));
  EXPECT_EQ(dropped, 12);
  // A run that goes on after step 50.
  EXPECT_THAT(steps_kept({.first = 1, .last = 2, .newest = 1}, 51, 60, &dropped), ElementsAre(51, 52, 60));
  const TraceWindow chosen{.first = 4, .last = 5, .newest = 0, .count = TraceWindow::Count::of_run};
  EXPECT_THAT(steps_kept(chosen, 1, 10, &dropped), ElementsAre(4, 5));
  EXPECT_EQ(dropped, 16);
  EXPECT_THAT(steps_kept(chosen, 6, 10, &dropped), IsEmpty());
}

TEST(Trace, SpansAreInTheOrderOfTimeWhateverTheirSteps) {
  Trace trace({.first = 1, .last = 1, .newest = 2});
  TraceLane& lane = trace.add_lane("disk", trace_order::kDisk);
  trace.begin_step(1);
  lane.add({"begun before", {}, 0}, "", 0, 1, 0);
  lane.add({"read ahead", {}, 2}, "", 1, 2, 0);
  lane.add({"write", {}, 1}, "", 2, 3, 0);
  EXPECT_THAT(names(lane_named(trace.stop(), "disk")), ElementsAre("begun before", "read ahead", "write"));
}

TEST(Trace, MemoryIsBounded) {
  Trace trace({.first = 1, .last = 1, .newest = 1});
  TraceLane& lane = trace.add_lane("compute", trace_order::kCompute);
  const auto most = static_cast<int64_t>(TraceWindow::kMostSpans);
  for (const int64_t step : {1, 2}) {
    trace.begin_step(step);
    for (int64_t i = 0; i < most + 100; ++i) lane.add({i % 2 == 0 ? "a" : "b", {}, step}, "", 0, 0, 0);
  }
  const TraceLaneRecord found = lane_named(trace.stop(), "compute");
  EXPECT_EQ(found.spans.size(), 2 * TraceWindow::kMostSpans);
  EXPECT_EQ(found.dropped_count, 200);
}

TEST(Trace, NothingIsRecordedBeforeTheFirstStepAndAfterTheEnd) {
  Trace trace;
  TraceLane& lane = trace.add_lane("compute", trace_order::kCompute);
  lane.add({}, "early", 0, 1, 0);
  trace.begin_step(1);
  lane.add({}, "inside", 2, 3, 0);
  EXPECT_THAT(names(lane_named(trace.stop(), "compute")), ElementsAre("inside"));
  lane.add({}, "late", 4, 5, 0);
  trace.begin_step(2);
}

// What ThreadSanitizer is to see: lanes that go on while the recording ends.
TEST(Trace, EndsWhileThreadsRecord) {
  Trace trace;
  trace.begin_step(1);
  std::atomic<int> recorded_count = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const TraceThread thread(&trace, "thread", trace_order::kHost);
      for (int64_t n = 0; !stop; ++n) {
        this_thread_lane()->add({n % 2 == 0 ? "a" : "b", "c", 1}, "", n, n, 1);
        ++recorded_count;
      }
    });
  }
  while (recorded_count < 1000) std::this_thread::yield();
  const std::vector<TraceLaneRecord> lanes = trace.stop();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  size_t spans = 0;
  for (const TraceLaneRecord& lane : lanes) spans += lane.name == "thread" ? lane.spans.size() : 0;
  EXPECT_GE(spans + 3, 1000u);
}

TEST(WorkLabel, ScopesNest) {
  this_thread_label() = {"forward", "layer 0", 5};
  {
    const WorkScope work("in", "layer 1");
    EXPECT_EQ(this_thread_label().text(), "in layer 1");
    EXPECT_EQ(this_thread_label().step, 5);
  }
  EXPECT_EQ(this_thread_label().text(), "forward layer 0");
  this_thread_label() = {};
}

TEST(TraceJson, SaysTheSameToAJsonParser) {
  const TraceLaneRecord lane{
      "a \"lane\"\n",
      0,
      {{.name = "read \\ layer 3",
        .begin_ns = 5'000'000'001,
        .end_ns = 5'000'002'001,
        .busy_ns = 1'500,
        .bytes = 4000,
        .task_count = 2,
        .step = 7},
       {.name = "next", .begin_ns = 5'000'002'001, .end_ns = 5'000'002'001, .step = 8}},
      3};
  const std::vector<TraceProcess> processes{{"measured", {lane}}, {"predicted", {}}};
  const std::vector<std::pair<std::string, std::string>> notes{{"steps", "7 to 8"}};
  std::string text;
  write_trace_json(processes, notes, [&](std::string_view piece) { text += piece; });
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_EQ(json["otherData"]["steps"], "7 to 8");
  std::vector<nlohmann::json> spans;
  std::map<std::string, nlohmann::json> metadata;
  for (const nlohmann::json& event : json["traceEvents"]) {
    if (event["ph"] == "X") {
      spans.push_back(event);
    } else {
      metadata[event["name"].get<std::string>() + std::to_string(event["pid"].get<int>())] = event["args"];
    }
  }
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["name"], "read \\ layer 3");
  EXPECT_EQ(spans[0]["ts"], 0.0);
  EXPECT_EQ(spans[0]["dur"], 2.0);
  EXPECT_EQ(spans[0]["args"]["bytes"], 4000);
  EXPECT_EQ(spans[0]["args"]["GB_per_s"], 2.0);
  EXPECT_EQ(spans[0]["args"]["busy_us"], 1.5);
  EXPECT_EQ(spans[0]["args"]["step"], 7);
  EXPECT_EQ(spans[1]["ts"], 2.0);
  EXPECT_EQ(metadata["thread_name1"]["name"], "a \"lane\"\n");
  EXPECT_EQ(metadata["process_name1"]["name"], "measured");
  EXPECT_EQ(metadata["process_name2"]["name"], "predicted");
}

}  // namespace
}  // namespace sluice
