#include "engine/schedule/predicted_lanes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace sluice {
namespace {

constexpr int kStepsToSteady = 4;

struct LaneName {
  std::string_view name;
  int order;
};

// In the order of Lane.
constexpr std::array<LaneName, kLaneCount> kNames = {{{"compute", trace_order::kCompute},
                                                      {"copy in", trace_order::kCopyIn},
                                                      {"copy out", trace_order::kCopyOut},
                                                      {"disk read", trace_order::kDisk},
                                                      {"disk write", trace_order::kDisk},
                                                      {"optimizer", trace_order::kHost}}};

int64_t to_ns(double seconds) {
  return std::llround(seconds * 1e9);
}

double computation_begin(std::span<const SimTask> step, const Timeline& timeline, int of_step) {
  double begin = std::numeric_limits<double>::max();
  for (const Timeline::Span& span : timeline.spans) {
    const bool computes = step[static_cast<size_t>(span.task)].lane == Lane::compute;
    if (span.step == of_step && computes) begin = std::min(begin, span.begin);
  }
  return begin;
}

}  // namespace

std::vector<TraceLaneRecord> predicted_lanes(std::span<const SimTask> step, Processors processors,
                                             std::span<const StepGroup> groups) {
  std::vector<TraceLaneRecord> lanes;
  for (const LaneName& lane : kNames) lanes.push_back({std::string(lane.name), lane.order, {}, 0});
  for (const StepGroup& group : groups) {
    if (step.empty() || group.count < 1) continue;
    const int before = group.first_step > 1 ? kStepsToSteady : 0;
    const Timeline timeline = simulate(step, {.step_count = before + group.count, .processors = processors});
    const double origin = computation_begin(step, timeline, before);
    for (const Timeline::Span& span : timeline.spans) {
      // Of the step before the first only what runs beside it: its update.
      if (span.end <= span.begin || span.step < before - 1 || (span.step < before && span.end <= origin))
        continue;
      const SimTask& task = step[static_cast<size_t>(span.task)];
      std::vector<TraceSpan>& lane = lanes[static_cast<size_t>(task.lane)].spans;
      const int64_t begin_ns = group.begin_ns + to_ns(span.begin - origin);
      if (!lane.empty() && begin_ns < lane.back().end_ns) continue;
      const int64_t end_ns = group.begin_ns + to_ns(span.end - origin);
      lane.push_back({.name = task.label,
                      .begin_ns = begin_ns,
                      .end_ns = end_ns,
                      .busy_ns = end_ns - begin_ns,
                      .bytes = static_cast<uint64_t>(task.bytes),
                      .task_count = 1,
                      .step = group.first_step + span.step - before});
    }
  }
  std::erase_if(lanes, [](const TraceLaneRecord& lane) { return lane.spans.empty(); });
  std::ranges::stable_sort(lanes, {}, &TraceLaneRecord::order);
  return lanes;
}

}  // namespace sluice
