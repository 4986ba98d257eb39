#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/finetune/disk_use.h"
#include "apps/finetune/forecast.h"
#include "engine/schedule/plan.h"

// What `plan` judges, each apart from the others. Pure: who asks brings the facts.
namespace sluice::finetune {

struct Verdict {
  std::string about;  // "memory"
  bool go = true;
  std::string text;      // why, with the numbers
  std::string would_go;  // of a no-go: the nearest setting that would; empty: none is known
};

struct MemoryFacts {
  size_t machine_bytes = 0;   // that this process could have at most
  size_t free_bytes = 0;      // now, with what this process holds already
  bool device_is_ram = true;  // the device is the CPU
};
Verdict judge_memory(const Plan& plan, const MemoryFacts& facts);

Verdict judge_room(std::span<const RoomWanted> wanted);

Verdict judge_endurance(const DiskUse& use, std::optional<uint64_t> limit_bytes, double step_seconds);

// A run has no limit of time: always go, with what there is to know.
Verdict judge_time(const Forecast& forecast);

bool all_go(std::span<const Verdict> verdicts);
// A line each, and the same for programs.
std::string verdict_table(std::span<const Verdict> verdicts);
nlohmann::ordered_json verdicts_json(std::span<const Verdict> verdicts);

}  // namespace sluice::finetune
