#include <algorithm>
#include <array>
#include <cmath>

#include "apps/finetune/run_record.h"
#include "engine/base/error.h"
#include "tests/fuzz/fuzz_target.h"

namespace sluice::test {
namespace {

using finetune::RunProgress;
using nlohmann::json;

// As a manifest keeps it: as JSON text.
void check_round_trip(const RunProgress& progress) {
  const std::string text = finetune::run_record({}, progress).dump();
  const RunProgress read = finetune::recorded_progress(json::parse(text));
  promise(read.facts.steps == progress.facts.steps && read.facts.tokens == progress.facts.tokens &&
              read.facts.skipped_steps == progress.facts.skipped_steps &&
              read.facts.label_tokens == progress.facts.label_tokens &&
              read.skipped_in_a_row == progress.skipped_in_a_row && read.cursor == progress.cursor,
          "counts are read as they were written");
  promise(read.facts.loss == progress.facts.loss && read.facts.train_loss == progress.facts.train_loss &&
              read.facts.seconds == progress.facts.seconds,
          "numbers are read as they were written");
}

void check_promises(std::string_view bytes) {
  json record;
  try {
    // The manifest's reader has parsed it before, and refuses what is nested deeper.
    record = json::parse(bytes);
  } catch (const json::exception&) {
    throw Error(ErrorKind::data, "no JSON");
  }
  verdict_of([&] { finetune::recorded_config(record); });
  const RunProgress progress = finetune::recorded_progress(record);
  const finetune::RunFacts& facts = progress.facts;
  for (const int64_t count : {facts.steps, facts.skipped_steps, facts.tokens, facts.label_tokens,
                              progress.skipped_in_a_row, progress.cursor.epoch, progress.cursor.position})
    promise(count >= 0, "counts are not negative");
  promise(record["progress"]["steps"] == facts.steps, "a count is what stands there");
  check_round_trip(progress);
}

}  // namespace

Verdict check_run_record(std::string_view bytes) {
  // The bytes as the numbers of a run, too: whatever a run can reach can be saved and read. A loss that is
  // not finite ends the run.
  RunProgress progress;
  std::array<double, 3> numbers{};
  std::copy_n(bytes.data(), std::min(bytes.size(), sizeof(numbers)), reinterpret_cast<char*>(numbers.data()));
  for (double& number : numbers)
    if (!std::isfinite(number)) number = 0;
  progress.facts.loss = numbers[0];
  progress.facts.train_loss = numbers[1];
  progress.facts.seconds = numbers[2];
  progress.facts.steps = static_cast<int64_t>(bytes.size());
  check_round_trip(progress);
  return verdict_of([&] { check_promises(bytes); });
}

std::vector<std::string> run_record_seeds() {
  RunProgress progress;
  progress.facts.steps = 12;
  progress.facts.skipped_steps = 1;
  progress.facts.loss = 2.25;
  progress.facts.train_loss = 3.125;
  progress.facts.tokens = 4096;
  progress.facts.label_tokens = 4000;
  progress.facts.seconds = 7.5;
  progress.cursor = {1, 5};
  std::vector<std::string> seeds = {finetune::run_record({}, progress).dump()};
  for (const std::string& config : config_seeds())
    seeds.push_back(finetune::run_record({{"config", config}, {"seed", 1}}, progress).dump());
  return seeds;
}

}  // namespace sluice::test
