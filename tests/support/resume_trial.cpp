#include "tests/support/resume_trial.h"

#include <gmock/gmock.h>
#include <sstream>

namespace sluice::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kRows =
    "{\"prompt\": \"Who are you?\", \"completion\": \" A sluice.\"}\n"
    "{\"prompt\": \"What is a sluice?\", \"completion\": \" A gate for water.\"}\n"
    "{\"prompt\": \"Why?\", \"completion\": \" To let through what fits, and to hold what does not.\"}\n"
    "{\"prompt\": \"And then?\", \"completion\": \" The rest.\"}\n"
    "{\"prompt\": \"More?\", \"completion\": \" Water finds its level, and what is held back finds its way "
    "around.\"}\n";

}  // namespace

nlohmann::json run_results(const fs::path& output) {
  nlohmann::json found = nlohmann::json::array();
  for (const nlohmann::json& event : read_events(output)) {
    if (event["event"] == "step") {
      found.push_back({event["step"], event["loss"], event["grad_norm"], event["learning_rate"],
                       event["epoch"], event["tokens"]});
    }
    if (event["event"] == "end") {
      found.push_back({event["state_hash"], event["steps"], event["loss"], event["train_loss"],
                       event["tokens"], event["label_tokens"], event["skipped_steps"]});
    }
  }
  return found;
}

ResumeTrial::ResumeTrial() : CliTrial(kRows) {}

CliTrial::Arguments ResumeTrial::train_arguments(const fs::path& output, const Arguments& more) const {
  return joined({"train", "--model", model_, "--data", data_, "--output", output, "--learning_rate", "1e-3",
                 "--warmup_steps", "2", "--gradient_accumulation_steps", "2"},
                more);
}

Outcome ResumeTrial::train(const fs::path& output, const Arguments& more) const {
  return run(train_arguments(output, more));
}

CliTrial::Arguments ResumeTrial::spill(const std::string& drives, const std::string& what) const {
  std::string list;
  std::istringstream names(drives);
  for (std::string name; std::getline(names, name, ',');) {
    if (!list.empty()) list += ',';
    list += (folder_ / name).string();
  }
  return {"--spill_dir", list, "--spill", what};
}

nlohmann::json ResumeTrial::expected(const std::string& steps, const Arguments& more) const {
  const fs::path output = folder_ / "undisturbed";
  const Outcome outcome = train(output, joined({"--max_steps", steps}, more));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return run_results(output);
}

void ResumeTrial::interrupt(const fs::path& output, const Arguments& more) const {
  const Outcome outcome = train(output, joined({"--max_steps", "6", "--stop_after", "3"}, more));
  EXPECT_EQ(outcome.code, kInterrupted) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Interrupted after step 3 of 6"));
  EXPECT_THAT(outcome.err, HasSubstr("--resume"));
}

Outcome ResumeTrial::resume(const fs::path& output, const Arguments& more) const {
  return train(output, joined({"--max_steps", "6", "--resume"}, more));
}

}  // namespace sluice::test
