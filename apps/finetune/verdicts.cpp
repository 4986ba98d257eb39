#include "apps/finetune/verdicts.h"

#include <algorithm>

namespace sluice::finetune {
namespace {

std::string of(uint64_t part, uint64_t whole) {
  return format_bytes(part) + " of " + format_bytes(whole);
}

}  // namespace

Verdict judge_memory(const Plan& plan, const MemoryFacts& facts) {
  const size_t device = plan.peak_bytes(Tier::device), host = plan.peak_bytes(Tier::host);
  const size_t wanted = host + (facts.device_is_ram ? device : 0);
  Verdict verdict{.about = "memory", .go = wanted <= facts.machine_bytes};
  verdict.text = "device " + format_bytes(device) + ", host " + format_bytes(host) +
                 (facts.device_is_ram ? ", both in RAM: " : "; RAM: ") + of(wanted, facts.machine_bytes);
  if (verdict.go && wanted > facts.free_bytes) {
    verdict.text += ", of which only " + format_bytes(facts.free_bytes) + " are free now";
  }
  return verdict;
}

Verdict judge_room(std::span<const RoomWanted> wanted) {
  Verdict verdict{.about = "disk space", .text = wanted.empty() ? "nothing is written" : ""};
  for (const RoomWanted& room : wanted) {
    const bool enough = room.wanted_bytes <= room.free_bytes;
    verdict.go = verdict.go && enough;
    verdict.text += (verdict.text.empty() ? "" : "; ") + of(room.wanted_bytes, room.free_bytes) +
                    " free at " + room.folder + " for " + room.what;
    if (!enough && verdict.would_go.empty()) {
      verdict.would_go = format_bytes(room.wanted_bytes - room.free_bytes) + " more room at " + room.folder +
                         ", or another drive (--spill_dir, --output)";
    }
  }
  return verdict;
}

Verdict judge_endurance(const DiskUse& use, std::optional<uint64_t> limit_bytes, double step_seconds) {
  Verdict verdict{.about = "endurance"};
  verdict.text = format_bytes(use.written_per_step) + " a step";
  if (step_seconds > 0) verdict.text += ", " + format_bytes(use.written_per_day(step_seconds)) + " a day";
  if (const auto written = use.written_per_run())
    verdict.text += ", " + format_bytes(*written) + " in the run";
  if (!limit_bytes) {
    if (use.written_per_step > 0) verdict.text += "; no --ssd_write_limit";
    return verdict;
  }
  const std::optional<uint64_t> wanted = use.limit_wanted();
  if (!wanted) {
    verdict.text += "; without --data or --max_steps not held against --ssd_write_limit";
    return verdict;
  }
  verdict.go = *wanted <= *limit_bytes;
  if (use.written_per_save > 0)
    verdict.text += " and " + format_bytes(use.written_per_save) + " should it be interrupted once";
  verdict.text += ", of --ssd_write_limit " + format_bytes(*limit_bytes);
  if (!verdict.go) {
    verdict.would_go =
        "--ssd_write_limit " + std::to_string((*wanted >> 30) + 1) + "GiB, or more --host_memory";
  }
  return verdict;
}

Verdict judge_time(const Forecast& forecast) {
  Verdict verdict{.about = "time"};
  verdict.text = format_seconds(forecast.step.step_seconds) + " a step";
  if (forecast.steps > 0) {
    verdict.text +=
        ", " + format_seconds(forecast.run_seconds()) + " for " + std::to_string(forecast.steps) + " step(s)";
  } else {
    verdict.text += "; the run's length follows from --data or --max_steps";
  }
  if (forecast.disk_assumed) verdict.text += "; the drive is assumed, not measured";
  return verdict;
}

bool all_go(std::span<const Verdict> verdicts) {
  return std::ranges::all_of(verdicts, &Verdict::go);
}

std::string verdict_table(std::span<const Verdict> verdicts) {
  std::string text;
  for (const Verdict& verdict : verdicts) {
    text += verdict.about + ": " + (verdict.go ? "go" : "no-go") + " (" + verdict.text + ")\n";
    if (!verdict.would_go.empty()) text += "  would go: " + verdict.would_go + "\n";
  }
  return text;
}

nlohmann::ordered_json verdicts_json(std::span<const Verdict> verdicts) {
  nlohmann::ordered_json json;
  for (const Verdict& verdict : verdicts) {
    nlohmann::ordered_json entry{{"verdict", verdict.go ? "go" : "no-go"}, {"reason", verdict.text}};
    if (!verdict.would_go.empty()) entry["would_go"] = verdict.would_go;
    json[verdict.about] = std::move(entry);
  }
  return json;
}

}  // namespace sluice::finetune
