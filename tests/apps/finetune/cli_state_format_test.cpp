// --state_format from outside, and finetune convert-state (docs/state-formats.md).
#include <gmock/gmock.h>

#include "tests/support/cli_trial.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Outcome;
using ::testing::HasSubstr;

constexpr const char* kRows =
    "{\"prompt\": \"Who are you?\", \"completion\": \" A sluice.\"}\n"
    "{\"prompt\": \"What is a sluice?\", \"completion\": \" A gate for water.\"}\n"
    "{\"prompt\": \"Why?\", \"completion\": \" To let through what fits.\"}\n";

class CliStateFormat : public test::CliTrial {
 protected:
  CliStateFormat() : CliTrial(kRows) {}

  Arguments train_arguments(const fs::path& output, const std::string& format,
                            const Arguments& more = {}) const {
    return joined({"train", "--model", model_, "--data", data_, "--output", output, "--learning_rate", "1e-2",
                   "--max_steps", "6", "--state_format", format},
                  more);
  }
  Outcome train(const fs::path& output, const std::string& format, const Arguments& more = {}) const {
    return run(train_arguments(output, format, more));
  }
  void interrupt(const fs::path& output, const std::string& format, const Arguments& more = {}) const {
    const Outcome outcome = train(output, format, joined({"--stop_after", "3"}, more));
    ASSERT_EQ(outcome.code, 143) << outcome.err;
  }
  // Of each step, and of the end.
  static json results(const fs::path& output) {
    json found = json::array();
    for (const json& event : test::read_events(output)) {
      if (event["event"] == "step") found.push_back({event["step"], event["loss"], event["grad_norm"]});
      if (event["event"] == "end") found.push_back(event["state_hash"]);
    }
    return found;
  }
  static json losses(const fs::path& output) {
    json found = results(output);
    found.erase(found.size() - 1);
    return found;
  }
  static std::string weights(const fs::path& output) { return test::read_all(output / "model.safetensors"); }
  Arguments spill() const { return {"--spill_dir", folder_ / "drive", "--spill", "all"}; }
};

TEST_F(CliStateFormat, TrainsInEveryFormatAndGoesOnInIt) {
  for (const std::string format : {"split", "split_bf16", "bf16", "int8", "fp32"}) {
    SCOPED_TRACE(format);
    const fs::path undisturbed = folder_ / ("undisturbed " + format), output = folder_ / format;
    ASSERT_EQ(train(undisturbed, format).code, 0);
    interrupt(output, format, spill());
    const Outcome resumed = train(output, format, {"--resume", "--threads", "1"});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(results(output), results(undisturbed));
    EXPECT_EQ(weights(output), weights(undisturbed));
    EXPECT_EQ(test::read_events(output)[0]["options"]["state_format"], format);
  }
  EXPECT_EQ(losses(folder_ / "fp32"), losses(folder_ / "split")) << "the same numbers in other places";
  EXPECT_EQ(weights(folder_ / "fp32"), weights(folder_ / "split"));
  EXPECT_NE(results(folder_ / "int8"), results(folder_ / "bf16"));
}

TEST_F(CliStateFormat, TheSeedIsThatOfTheRoundingToo) {
  const Arguments alone{"--per_device_train_batch_size", "3"};  // every step has all rows
  for (const std::string format : {"split", "bf16"}) {
    const fs::path one = folder_ / (format + " 1"), two = folder_ / (format + " 2");
    ASSERT_EQ(train(one, format, joined({"--seed", "1"}, alone)).code, 0);
    ASSERT_EQ(train(two, format, joined({"--seed", "2"}, alone)).code, 0);
    EXPECT_NE(results(one), results(two));
  }
}

TEST_F(CliStateFormat, AnotherFormatIsRefusedWithWhatChangesIt) {
  interrupt(output_, "split");
  const Outcome refused = train(output_, "int8", {"--resume"});
  EXPECT_EQ(refused.code, 2) << refused.err;
  for (const char* text : {"--state_format", "begun with split", "says int8",
                           "finetune convert-state --input", "--state_format int8"})
    EXPECT_THAT(refused.err, HasSubstr(text));
  EXPECT_EQ(train(output_, "split", {"--resume"}).code, 0) << "and the state is as it was";
}

TEST_F(CliStateFormat, SplitAndTheTextbookConvertWithoutALoss) {
  const fs::path undisturbed = folder_ / "undisturbed";
  ASSERT_EQ(train(undisturbed, "split").code, 0);
  interrupt(output_, "split");
  const Outcome there = run({"convert-state", "--input", output_, "--state_format", "fp32"});
  ASSERT_EQ(there.code, 0) << there.err;
  for (const char* text : {"after step 3 from split (", "to fp32 (", "Nothing is lost", "--resume"})
    EXPECT_THAT(there.out, HasSubstr(text));
  EXPECT_EQ(train(output_, "split", {"--resume"}).code, 2);
  const Outcome back = run({"convert-state", "--input", output_, "--state_format", "split"});
  ASSERT_EQ(back.code, 0) << back.err;
  const Outcome again = run({"convert-state", "--input", output_, "--state_format", "split"});
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.out, HasSubstr("already"));
  ASSERT_EQ(train(output_, "split", {"--resume"}).code, 0);
  EXPECT_EQ(results(output_), results(undisturbed)) << "there and back";
}

TEST_F(CliStateFormat, ConvertsASpilledRunInPlaceOrIntoAnotherFolder) {
  interrupt(output_, "split", spill());
  const fs::path copy = folder_ / "copy";
  const Outcome to_copy =
      run({"convert-state", "--input", output_, "--output", copy, "--state_format", "int8"});
  ASSERT_EQ(to_copy.code, 0) << to_copy.err;
  EXPECT_THAT(to_copy.out, HasSubstr("Lost: the low halves of the masters"));
  EXPECT_THAT(to_copy.out, HasSubstr("moments are rounded to 8 bits"));
  const Outcome in_place = run({"convert-state", "--input", output_, "--state_format", "int8"});
  ASSERT_EQ(in_place.code, 0) << in_place.err;
  size_t slabs = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "drive/sluice"))
    slabs += entry.path().extension() == ".slab" ? 1 : 0;
  EXPECT_EQ(slabs, 1u) << "the old state is gone";
  ASSERT_EQ(train(output_, "int8", joined({"--resume"}, spill())).code, 0);
  const Outcome elsewhere = train(copy, "int8", {"--resume"});
  ASSERT_EQ(elsewhere.code, 0) << elsewhere.err;
  EXPECT_EQ(results(copy), results(output_));
  EXPECT_EQ(results(copy).size(), 7u) << "with the steps of the first part";

  const fs::path third = folder_ / "third", fourth = folder_ / "fourth";
  interrupt(third, "int8");
  const Outcome copied =
      run({"convert-state", "--input", third, "--output", fourth, "--state_format", "int8"});
  ASSERT_EQ(copied.code, 0) << copied.err;
  EXPECT_THAT(copied.out, HasSubstr("Nothing is lost"));
  ASSERT_EQ(train(third, "int8", {"--resume"}).code, 0);
  ASSERT_EQ(train(fourth, "int8", {"--resume"}).code, 0);
  EXPECT_EQ(results(fourth), results(third)) << "the same format is a copy";
}

TEST_F(CliStateFormat, WhatCannotBeConverted) {
  const Outcome nothing = run({"convert-state", "--input", output_, "--state_format", "int8"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("no saved state"));
  EXPECT_FALSE(fs::exists(output_));
  const Outcome unsaid = run({"convert-state", "--input", output_});
  EXPECT_EQ(unsaid.code, 2);
  EXPECT_THAT(unsaid.err, HasSubstr("--state_format"));
  const Outcome unknown = run({"convert-state", "--input", output_, "--state_format", "int9"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("int8"));
  interrupt(output_, "bf16");
  const Outcome full =
      run({"convert-state", "--input", output_, "--output", model_, "--state_format", "int8"});
  EXPECT_EQ(full.code, 2) << full.err;
  EXPECT_THAT(full.err, HasSubstr("holds something already"));
}

TEST_F(CliStateFormat, ThePlanShowsWhatEachFormatTakes) {
  const Arguments plan{"plan", "--model", model_, "--compute_dtype", "bf16"};
  const Outcome table = run(plan);
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* text :
       {"states: split, 12 bytes a parameter", "2 of gradient", "--state_format split_bf16: 8",
        "--state_format bf16: 6", "--state_format int8: 4.03 bytes, saves"})
    EXPECT_THAT(table.out, HasSubstr(text));
  const auto states = [&](const std::string& format) {
    return json::parse(run(joined(plan, {"--json", "--state_format", format})).out)["states"];
  };
  EXPECT_EQ(states("split")["bytes_per_parameter"], 12);
  EXPECT_EQ(states("split")["smaller"].size(), 3u);
  EXPECT_EQ(states("fp32")["smaller"].size(), 4u);
  EXPECT_TRUE(states("int8")["smaller"].empty());
  EXPECT_EQ(states("split")["smaller"][2]["saved_bytes"].get<uint64_t>(),
            states("split")["bytes"].get<uint64_t>() - states("int8")["bytes"].get<uint64_t>());
}

TEST_F(CliStateFormat, ARefusedPlanOffersASmallerFormat) {
  // Large enough for its states to count beside what the process holds.
  json config = json::parse(test::read_all(model_ / "config.json"));
  config["num_hidden_layers"] = 100;
  config["intermediate_size"] = 2048;
  test::write_all(folder_ / "config.json", config.dump());
  const Arguments plan{"plan", "--model", folder_ / "config.json", "--json", "--max_seq_length", "64"};
  const auto least = [&](const std::string& format) {
    const Outcome refused = run(joined(plan, {"--host_memory", "1KiB", "--state_format", format}));
    EXPECT_EQ(refused.code, 4) << refused.err;
    return json::parse(refused.out)["least_host_bytes"].get<uint64_t>();
  };
  const uint64_t split = least("split"), int8 = least("int8");
  ASSERT_LT(int8, split);
  const Outcome refused = run(joined(plan, {"--host_memory", std::to_string((split + int8) / 2)}));
  ASSERT_EQ(refused.code, 4) << refused.err;
  const json would_go = json::parse(refused.out)["would_go"];
  EXPECT_THAT(would_go.dump(), HasSubstr("--state_format "));
}

}  // namespace
}  // namespace sluice
