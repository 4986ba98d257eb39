#include "apps/finetune/run_trace.h"

#include <algorithm>
#include <iostream>
#include <utility>
#include <vector>

#include "apps/common/version.h"
#include "engine/base/error.h"
#include "engine/schedule/predicted_lanes.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

constexpr int kPlannedSteps = 4;
constexpr size_t kWriteBytes = size_t{1} << 20;

using Notes = std::vector<std::pair<std::string, std::string>>;

void write_file(const std::filesystem::path& path, std::span<const TraceProcess> processes,
                const Notes& notes) {
  PendingFile pending(path);
  std::string buffer;
  uint64_t offset = 0;
  const auto flush = [&] {
    pending.file().write_at(buffer.data(), buffer.size(), offset);
    offset += buffer.size();
    buffer.clear();
  };
  write_trace_json(processes, notes, [&](std::string_view text) {
    buffer += text;
    if (buffer.size() >= kWriteBytes) flush();
  });
  flush();
  pending.commit();
}

Notes prediction_notes(const Forecast& forecast) {
  Notes notes{{"program", "finetune " + std::string(kVersion)}, {"predicted from", forecast.compute_from}};
  if (!forecast.disk_from.empty()) notes.emplace_back("predicted drives", forecast.disk_from);
  return notes;
}

// Of the steps in the lane "steps".
std::vector<StepGroup> groups_of(std::span<const TraceLaneRecord> lanes) {
  std::vector<StepGroup> groups;
  for (const TraceLaneRecord& lane : lanes) {
    if (lane.order != trace_order::kSteps) continue;
    for (const TraceSpan& span : lane.spans) {
      const bool follows = !groups.empty() && groups.back().first_step + groups.back().count == span.step;
      if (follows) {
        ++groups.back().count;
      } else {
        groups.push_back({span.step, 1, span.begin_ns});
      }
    }
  }
  return groups;
}

std::string steps_text(std::span<const StepGroup> groups) {
  std::string text;
  for (const StepGroup& group : groups) {
    text += (text.empty() ? "" : ", ") + std::to_string(group.first_step);
    if (group.count > 1) text += " to " + std::to_string(group.first_step + group.count - 1);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

void check_trace_path(const std::filesystem::path& path) {
  try {
    if (std::filesystem::is_directory(path)) throw_file_error("write", path, EISDIR);
    const PendingFile trial(path);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, std::string("--trace: ") + error.what());
  }
}

void write_predicted_trace(const std::filesystem::path& path, const Forecast& forecast) {
  const StepGroup group{.count = kPlannedSteps};
  const TraceProcess process{"predicted",
                             predicted_lanes(forecast.step.tasks, forecast.step.processors, {&group, 1})};
  write_file(path, {&process, 1}, prediction_notes(forecast));
}

RunTrace::RunTrace(std::filesystem::path path, std::shared_ptr<Trace> trace, Forecast forecast)
    : path_(std::move(path)), trace_(std::move(trace)), forecast_(std::move(forecast)) {}

void RunTrace::write() {
  MutexLock lock(mutex_);
  if (std::exchange(written_, true)) return;
  std::vector<TraceProcess> processes{{"measured", trace_->stop()}, {"predicted", {}}};
  const std::vector<StepGroup> groups = groups_of(processes[0].lanes);
  processes[1].lanes = predicted_lanes(forecast_.step.tasks, forecast_.step.processors, groups);
  int64_t dropped_count = 0;
  for (const TraceLaneRecord& lane : processes[0].lanes) dropped_count += lane.dropped_count;
  Notes notes = prediction_notes(forecast_);
  notes.emplace_back("steps", steps_text(groups));
  notes.emplace_back("dropped spans of other steps", std::to_string(dropped_count));
  try {
    write_file(path_, processes, notes);
    std::cerr << "The trace of step(s) " << steps_text(groups) << " is in " << path_.string()
              << " (open it in ui.perfetto.dev)\n";
  } catch (const std::exception& error) {
    std::cerr << "warning: there is no trace: " << error.what() << "\n";
  }
}

}  // namespace sluice::finetune
