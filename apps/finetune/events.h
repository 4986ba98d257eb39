#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/thread_annotations.h"
#include "io/file.h"

namespace sluice::finetune {

inline constexpr const char* kEventsName = "events.jsonl";

// The diary of a run: one JSON object a line, each in the file before write() returns, so that others can
// follow it and a run that dies leaves what it did. A number that is not finite is written as null. Thread-
// safe.
//
// Lines: {"event": "start", ...}, one {"event": "step", ...} a step, then {"event": "end", ...},
// "interrupted" or "error"; where a run goes on, {"event": "resume", ...} and its steps. "io_late" and
// "io_returned" (io_guard.h) may stand anywhere.
class EventLog {
 public:
  // Truncates what is there. Throws as File::create does.
  explicit EventLog(const std::filesystem::path& path) : file_(File::create(path)) {}
  // Goes on with the diary of a run whose state after `step` was saved: cuts off the steps that came later,
  // which will come again, and a line that was not finished.
  EventLog(const std::filesystem::path& path, int64_t step);

  // When it cannot be written (a full disk), says so once on standard error and keeps silent from then on:
  // the training is worth more than its diary.
  void write(const nlohmann::ordered_json& event) EXCLUDES(mutex_);

  // The most that any line, cut off or kept, says was written (written_bytes).
  uint64_t written_bytes() const { return written_bytes_; }
  // Steps that were cut off.
  int64_t dropped_steps() const { return dropped_steps_; }

 private:
  Mutex mutex_;
  std::optional<File> file_ GUARDED_BY(mutex_);
  uint64_t offset_ GUARDED_BY(mutex_) = 0;
  int64_t dropped_steps_ = 0;
  uint64_t written_bytes_ = 0;
};

}  // namespace sluice::finetune
