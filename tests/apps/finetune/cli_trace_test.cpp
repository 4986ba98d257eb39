// --trace of `finetune train` and `finetune plan`, from outside (docs/trace.md).
#include <gmock/gmock.h>
#include <map>
#include <set>
#include <sys/stat.h>

#include "tests/support/cli_trial.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Outcome;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kRows =
    "{\"prompt\": \"Who are you?\", \"completion\": \" A sluice.\"}\n"
    "{\"prompt\": \"What is a sluice?\", \"completion\": \" A gate for water.\"}\n";

struct Trace {
  explicit Trace(const fs::path& path) : all(json::parse(test::read_all(path))) {
    std::map<std::pair<int, int>, double> ends;
    for (const json& event : all["traceEvents"]) {
      const std::pair<int, int> lane{event["pid"], event["tid"]};
      if (event["ph"] == "M") {
        if (event["name"] == "process_name") processes.insert(event["args"]["name"].get<std::string>());
        continue;
      }
      EXPECT_EQ(event["ph"], "X");
      // Microseconds with three digits: equal up to the last bit of a double.
      const double begin = event["ts"], end = begin + event["dur"].get<double>();
      EXPECT_GE(begin, ends[lane] - 1e-6) << event;
      ends[lane] = end;
      names.insert(event["cat"].get<std::string>() + ": " + event["name"].get<std::string>() + " of " +
                   std::to_string(event["args"]["step"].get<int64_t>()));
    }
  }
  json all;
  std::set<std::string> processes;
  std::set<std::string> names;  // "measured: forward layer 0 of 3"
};

class CliTrace : public test::CliTrial {
 protected:
  CliTrace() : CliTrial(kRows) {
    ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);  // where rates of the machine are kept
  }
  Outcome train(const Arguments& more) const {
    return run(joined(
        {"train", "--model", model_, "--data", data_, "--output", output_, "--learning_rate", "1e-3"}, more));
  }
  const fs::path trace_ = folder_ / "trace.json";
};

TEST_F(CliTrace, HasMeasuredAndPredictedLanesOfTheSameSteps) {
  test::write_all(trace_, "of an older run");
  const Outcome outcome =
      train({"--max_steps", "12", "--trace", trace_, "--spill_dir", folder_ / "nvme", "--spill", "all"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("The trace of step(s) 1 to 4, 9 to 12 is in " + trace_.string()));
  const Trace trace(trace_);
  EXPECT_EQ(trace.processes, (std::set<std::string>{"measured", "predicted"}));
  EXPECT_EQ(trace.all["otherData"]["steps"], "1 to 4, 9 to 12");
  for (const std::string process : {"measured", "predicted"}) {
    for (const char* step : {"1", "4", "9", "12"}) {
      for (const char* name :
           {"forward layer 0", "backward layer 1", "update layer 0", "gradient layer 1", "in layer 0",
            "read weights of layer 1", "read states of layer 0", "write states of layer 1"}) {
        EXPECT_TRUE(trace.names.contains(process + ": " + name + " of " + step)) << process << name << step;
      }
    }
    EXPECT_FALSE(trace.names.contains(process + ": forward layer 0 of 5"));
  }
  EXPECT_TRUE(trace.names.contains("measured: commit of 12"));
}

TEST_F(CliTrace, TakesTheStepsThatAreAskedFor) {
  const Outcome outcome = train({"--max_steps", "6", "--trace", trace_, "--trace_steps", "3:4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Trace trace(trace_);
  EXPECT_EQ(trace.all["otherData"]["steps"], "3 to 4");
  EXPECT_TRUE(trace.names.contains("measured: forward layer 0 of 3"));
  EXPECT_FALSE(trace.names.contains("measured: forward layer 0 of 2"));
  EXPECT_FALSE(trace.names.contains("measured: forward layer 0 of 5"));
}

TEST_F(CliTrace, IsWrittenWhenTheRunIsInterruptedOrFails) {
  Outcome outcome = train({"--max_steps", "6", "--stop_after", "2", "--trace", trace_});
  ASSERT_EQ(outcome.code, 143) << outcome.err;
  EXPECT_TRUE(Trace(trace_).names.contains("measured: commit of 2"));
  fs::remove_all(output_);
  fs::remove(trace_);
  outcome = train({"--max_steps", "6", "--learning_rate", "1e38", "--trace", trace_});
  ASSERT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_TRUE(Trace(trace_).names.contains("measured: backward layer 0 of 1"));
}

TEST_F(CliTrace, NoTraceNoFile) {
  ASSERT_EQ(train({"--max_steps", "1"}).code, 0);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path()))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("trace")));
}

TEST_F(CliTrace, RefusesAPathThatCannotBeWrittenBeforeTheStart) {
  for (const fs::path& path : {folder_ / "missing" / "trace.json", folder_.path(), data_ / "trace.json"}) {
    const Outcome outcome = train({"--max_steps", "1", "--trace", path});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--trace: "));
    EXPECT_THAT(outcome.err, HasSubstr(path.string()));
    EXPECT_FALSE(fs::exists(output_));
  }
  const Outcome outcome = train({"--trace", trace_, "--trace_steps", "5:4"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--trace_steps"));
}

TEST_F(CliTrace, PlanWritesThePredictedLanesAlone) {
  const Outcome outcome =
      run({"plan", "--model", model_, "--data", data_, "--as", "RTX 4090", "--trace", trace_});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Trace trace(trace_);
  EXPECT_EQ(trace.processes, std::set<std::string>{"predicted"});
  EXPECT_TRUE(trace.names.contains("predicted: forward layer 0 of 1"));
  EXPECT_TRUE(trace.names.contains("predicted: update layer 1 of 4"));
}

}  // namespace
}  // namespace sluice
