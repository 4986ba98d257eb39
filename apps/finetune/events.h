#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/file.h"

namespace sluice::finetune {

inline constexpr const char* kEventsName = "events.jsonl";

// The diary of a run: one JSON object a line, each in the file before write() returns, so that others can
// follow it and a run that dies leaves what it did. A number that is not finite is written as null. Used by
// one thread.
//
// Lines: {"event": "start", ...}, one {"event": "step", ...} a step, then {"event": "end", ...},
// "interrupted" or "error".
class EventLog {
 public:
  // Truncates what is there. Throws as File::create does.
  explicit EventLog(const std::filesystem::path& path) : file_(File::create(path)) {}

  // When it cannot be written (a full disk), says so once on standard error and keeps silent from then on:
  // the training is worth more than its diary.
  void write(const nlohmann::ordered_json& event);

 private:
  std::optional<File> file_;
  uint64_t offset_ = 0;
};

}  // namespace sluice::finetune
