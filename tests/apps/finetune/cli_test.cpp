// The program `finetune` from outside: results, exit codes (docs/exit-codes.md), messages, and what it leaves
// behind.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/common/version.h"
#include "io/safetensors.h"
#include "tests/support/cli_trial.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::read_events;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kRows =
    "{\"prompt\": \"Who are you?\", \"completion\": \" A sluice.\"}\n"
    "{\"prompt\": \"What is a sluice?\", \"completion\": \" A gate for water.\"}\n"
    "{\"prompt\": \"Why?\", \"completion\": \" To let through what fits, and to hold what does not.\"}\n"
    "{\"prompt\": \"And then?\", \"completion\": \" The rest.\"}\n";

class CliTest : public test::CliTrial {
 protected:
  CliTest() : CliTrial(kRows) {
    ::setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);  // where plan keeps what it measures
  }

  Arguments train_arguments(const fs::path& output, const Arguments& more = {}) const {
    Arguments arguments{"train", "--model",         model_, "--data",
                        data_,   "--output",        output, "--max_steps",
                        "3",     "--learning_rate", "1e-3", "--per_device_train_batch_size",
                        "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  test::Outcome train(const fs::path& output, const Arguments& more = {}) const {
    return run(train_arguments(output, more));
  }
  // The command must fail so, and leave no output.
  void expect_failure(const Arguments& arguments, int code, const std::vector<std::string>& texts) const {
    const test::Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("finetune: "));
    for (const std::string& text : texts) EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_FALSE(fs::exists(output_));
  }
  void expect_train_failure(int code, const std::vector<std::string>& texts,
                            const Arguments& more = {}) const {
    expect_failure(train_arguments(output_, more), code, texts);
  }
  void edit_config(const std::function<void(json&)>& edit) const {
    json config = json::parse(test::read_all(model_ / "config.json"));
    edit(config);
    test::write_all(model_ / "config.json", config.dump());
  }
};

// Losses of the steps and the hash of the states at the end: all that a run computes.
json results(const fs::path& output) {
  json found = json::array();
  for (const json& event : read_events(output)) {
    if (event["event"] == "step") found.push_back({event["loss"], event["grad_norm"]});
    if (event["event"] == "end") found.push_back(event["state_hash"]);
  }
  return found;
}

TEST_F(CliTest, TrainsAndWritesAFolderLikeTheOneItRead) {
  const test::Outcome outcome = train(output_, {"--json", "--gradient_accumulation_steps", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(test::list_all(output_),
            (std::vector<std::string>{"config.json", "events.jsonl", "generation_config.json",
                                      "model.safetensors", "tokenizer.json"}));
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json"}) {
    EXPECT_EQ(test::read_all(output_ / name), test::read_all(model_ / name)) << name;
  }
  EXPECT_EQ(fs::file_size(output_ / "model.safetensors"), fs::file_size(model_ / "model.safetensors"));
  EXPECT_NE(test::read_all(output_ / "model.safetensors"), test::read_all(model_ / "model.safetensors"));

  const std::vector<json> events = read_events(output_);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["event"], "start");
  EXPECT_EQ(events[0]["options"]["learning_rate"], 1e-3);
  EXPECT_GT(events[0]["plan"]["peak_bytes"]["device"], 0);
  EXPECT_GT(events[0]["plan"]["drives"]["written_bytes_for_result"], 0);
  for (size_t step = 1; step <= 3; ++step) {
    const json& event = events[step];
    EXPECT_EQ(event["event"], "step");
    EXPECT_EQ(event["step"], step);
    EXPECT_EQ(event["epoch"], step);  // 4 rows, 2 x 2 a step
    EXPECT_GT(event["loss"], 1.0);
    EXPECT_GT(event["grad_norm"], 0.0);
    EXPECT_GT(event["tokens_per_second"], 0.0);
    EXPECT_GT(event["label_tokens"], 20);
    EXPECT_GT(event["tokens"], event["label_tokens"]);
    EXPECT_FALSE(event["skipped"]);
    for (const char* key : {"device", "host", "process"}) EXPECT_GT(event["peak_bytes"][key], 0) << key;
    double waited = 0;
    for (const char* lane : {"compute", "copy_in", "copy_out", "disk", "optimizer"}) {
      EXPECT_GE(event["waited"][lane], 0.0) << lane;
      waited += event["waited"][lane].get<double>();
    }
    EXPECT_EQ(event["waited"].size(), 5u);
    EXPECT_LE(waited, event["step_seconds"]) << "one thread waits for one lane at a time";
  }
  EXPECT_DOUBLE_EQ(events[1]["learning_rate"], 1e-3);
  EXPECT_NEAR(events[3]["learning_rate"].get<double>(), 1e-3 / 3, 1e-12);
  EXPECT_LT(events[3]["loss"], events[1]["loss"]) << "the same rows every step";
  json end = events[4];
  EXPECT_EQ(end["event"], "end");
  EXPECT_EQ(end["state_hash"].get<std::string>().size(), 16u);
  end.erase("event");
  EXPECT_EQ(json::parse(outcome.out), end);

  const std::string& screen = outcome.err;
  EXPECT_THAT(screen, HasSubstr("***** Running training *****\n  Num examples = 4\n  Num Epochs = 3\n"));
  EXPECT_THAT(screen, HasSubstr("Plan: device peak "));
  EXPECT_THAT(screen, HasSubstr("[[Who are you?]] A sluice."));
  EXPECT_THAT(screen, HasSubstr("step 3/3  loss "));
  EXPECT_EQ(run({"eval", "--model", output_, "--data", data_}).code, 0) << "the result can be read again";
}

TEST_F(CliTest, WhereBytesLiveAndHowManyThreadsDoNotChangeTheBits) {
  const Arguments common{"--gradient_accumulation_steps", "2", "--warmup_steps", "1"};
  Arguments too_small = common;
  too_small.insert(too_small.end(), {"--device_memory", "1KiB"});
  const test::Outcome refused = train(output_, too_small);
  ASSERT_EQ(refused.code, 4) << refused.err;
  std::smatch least;
  ASSERT_TRUE(std::regex_search(refused.err, least, std::regex("\\((\\d+) bytes\\)"))) << refused.err;
  const std::vector<Arguments> variants = {
      {},
      {"--device_memory", least[1]},
      {"--threads", "1", "--prefetch_distance", "0"},
      {"--threads", "3", "--prefetch_distance", "3", "--device_memory", "64MiB"},
      {"--recompute", "all"}};
  std::vector<json> found;
  for (size_t i = 0; i < variants.size(); ++i) {
    Arguments more = common;
    more.insert(more.end(), variants[i].begin(), variants[i].end());
    const fs::path output = folder_ / ("out" + std::to_string(i));
    const test::Outcome outcome = train(output, more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    found.push_back(results(output));
    ASSERT_EQ(found[i].size(), 4u);
    EXPECT_EQ(found[i], found[0]) << "variant " << i;
  }
  const json small = read_events(folder_ / "out1")[0]["plan"];
  EXPECT_GT(small["recomputed_layers"], 0);
  EXPECT_LE(small["peak_bytes"]["device"], std::stoull(least[1]));
}

TEST_F(CliTest, TheSeedChangesTheOrderOfTheRows) {
  ASSERT_EQ(train(folder_ / "a", {"--seed", "1"}).code, 0);
  ASSERT_EQ(train(folder_ / "b", {"--seed", "4"}).code, 0);
  EXPECT_NE(results(folder_ / "a"), results(folder_ / "b"));
}

TEST_F(CliTest, TheLastWindowOfAnEpochMayBeShort) {
  const test::Outcome outcome =
      train(output_, {"--max_steps", "-1", "--num_train_epochs", "2", "--gradient_accumulation_steps", "3",
                      "--per_device_train_batch_size", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<json> events = read_events(output_);
  ASSERT_EQ(events.size(), 6u);  // 3 + 1 rows, twice
  EXPECT_GT(events[1]["tokens"], events[2]["tokens"]);
  EXPECT_EQ(events[4]["epoch"], 2);
  EXPECT_EQ(events[1]["tokens"].get<int>() + events[2]["tokens"].get<int>(),
            events[3]["tokens"].get<int>() + events[4]["tokens"].get<int>());
}

TEST_F(CliTest, PlanNeedsNoDataAndIsWhatTrainFollows) {
  const test::Outcome bare = run({"plan", "--model", model_, "--max_seq_length", "100", "--json"});
  ASSERT_EQ(bare.code, 0) << bare.err;
  const json plan = json::parse(bare.out);
  EXPECT_EQ(plan["verdict"], "go");
  EXPECT_EQ(plan["tokens"], 128);
  json sums{{"device", 0}, {"host", 0}, {"disk", 0}};
  for (const json& part : plan["parts"]) {
    json& sum = sums[part["tier"].get<std::string>()];
    sum = sum.get<uint64_t>() + part["bytes"].get<uint64_t>();
  }
  EXPECT_EQ(sums, plan["peak_bytes"]);

  ASSERT_EQ(train(output_).code, 0);
  Arguments arguments = train_arguments(folder_ / "other", {"--json"});
  arguments[0] = "plan";
  json planned = json::parse(run(arguments).out);
  json followed = read_events(output_)[0]["plan"];
  for (json* each : {&planned, &followed}) {
    // The process's base is measured, and so differs from run to run.
    std::erase_if(each->at("parts").get_ref<json::array_t&>(),
                  [](const json& part) { return part["name"] == "process base"; });
    each->at("peak_bytes").erase("host");
  }
  for (const char* judgement : {"verdict", "verdicts", "prediction"}) planned.erase(judgement);
  EXPECT_EQ(planned, followed);
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

TEST_F(CliTest, PlanPrintsATableOrRefusesWithTheNumberThatWouldDo) {
  const test::Outcome go = run({"plan", "--model", model_});
  ASSERT_EQ(go.code, 0) << go.err;
  for (const char* text :
       {"device\n", "host\n", "sum", "process base", "weights to the device", "verdict: go"}) {
    EXPECT_THAT(go.out, HasSubstr(text));
  }
  EXPECT_THAT(go.out, HasSubstr("recomputed in backward: 0 of 2 layers;"));
  const test::Outcome refused = run({"plan", "--model", model_, "--device_memory", "1KiB"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.out, HasSubstr("verdict: no-go\nreason: the device limit of 1.00 KiB is too small"));
  EXPECT_THAT(refused.out, HasSubstr("would go: --device_memory "));
  for (const char* text :
       {"memory: no-go (", "disk space: go (with --device_memory ", "endurance: go (", "time: go ("})
    EXPECT_THAT(refused.out, HasSubstr(text));
  EXPECT_EQ(refused.err, "") << "a refusal is the plan's result";
}

TEST_F(CliTest, PlanForetellsTimeOfAConfigAlone) {
  const fs::path config = folder_ / "config.json";
  fs::copy(fs::path(model_) / "config.json", config);
  const test::Outcome outcome =
      run({"plan", "--model", config, "--as", "RTX 4090", "--max_steps", "100", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json plan = json::parse(outcome.out);
  EXPECT_EQ(plan["compute_dtype"], "bf16");
  EXPECT_THAT(plan["prediction"]["compute_from"], HasSubstr("RTX 4090"));
  const double step = plan["prediction"]["seconds_per_step"];
  EXPECT_GT(step, 0);
  EXPECT_NEAR(plan["prediction"]["run_seconds"], 100 * step, 1e-9 * step);
  for (const auto& [name, lane] : plan["prediction"]["lanes"].items())
    EXPECT_LE(lane["busy_seconds"].get<double>(), step * (1 + 1e-9)) << name;
  for (const char* about : {"memory", "disk space", "endurance", "time"})
    EXPECT_EQ(plan["verdicts"][about]["verdict"], "go");
  expect_failure({"plan", "--model", config, "--as", "RTX 4091"}, 2, {"RTX 4090"});

  const test::Outcome spilling =
      run({"plan", "--model", config, "--output", output_, "--spill_dir", folder_ / "spill", "--spill", "all",
           "--max_steps", "9", "--ssd_write_limit", "1KiB"});
  EXPECT_EQ(spilling.code, 4) << spilling.err;
  for (const char* text : {"assumed", "nvme_bench --quick", "disk_read", "memory: go", "disk space: go",
                           "endurance: no-go", "would go: --ssd_write_limit 1GiB", "verdict: no-go"})
    EXPECT_THAT(spilling.out, HasSubstr(text));

  const test::Outcome here = run({"plan", "--model", model_});
  ASSERT_EQ(here.code, 0) << here.err;
  for (const char* text : {"this processor", "bottleneck: ", "memory: go", "endurance: go", "time: go"})
    EXPECT_THAT(here.out, HasSubstr(text));
}

// Every setting that a refusal names goes, and the least is the least.
TEST_F(CliTest, ARefusedPlanNamesWhatWouldGo) {
  const Arguments plan{
      "plan",        "--model", model_,  "--max_seq_length", "512", "--per_device_train_batch_size", "4",
      "--recompute", "none",    "--json"};
  const auto with = [&](const Arguments& more) {
    Arguments arguments = plan;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const test::Outcome refused = with({"--device_memory", "4MiB"});
  ASSERT_EQ(refused.code, 4) << refused.err;
  const json said = json::parse(refused.out);
  EXPECT_EQ(said["verdict"], "no-go");
  EXPECT_THAT(said["reason"], HasSubstr("the device limit of 4.00 MiB is too small"));
  const auto least = said["least_device_bytes"].get<uint64_t>();
  EXPECT_EQ(with({"--device_memory", std::to_string(least)}).code, 0);
  EXPECT_EQ(with({"--device_memory", std::to_string(least - 1)}).code, 4);
  EXPECT_EQ(said["nearest_setting"], said["would_go"][0]);
  EXPECT_EQ(said["verdicts"]["memory"]["verdict"], "no-go");
  for (const char* about : {"disk space", "endurance", "time"})
    EXPECT_EQ(said["verdicts"][about]["verdict"], "go") << about;
  std::vector<std::string> options;
  for (const std::string setting : said["would_go"]) {
    const size_t space = setting.find(' ');
    options.push_back(setting.substr(0, space));
    EXPECT_EQ(with({"--device_memory", "4MiB", options.back(), setting.substr(space + 1)}).code, 0)
        << setting;
  }
  EXPECT_EQ(options[0], "--device_memory");
  EXPECT_THAT(options, ::testing::Contains("--max_seq_length"));
}

TEST_F(CliTest, TellsItsVersion) {
  const test::Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "finetune " + std::string(kVersion) + "\n");
  EXPECT_EQ(run({"version"}).out, version.out);
}

TEST_F(CliTest, ExportsInTheDtypeAskedFor) {
  const Arguments little{"--learning_rate", "1e-7", "--compute_dtype", "fp32"};
  Arguments wide = little;
  wide.insert(wide.end(), {"--export_dtype", "fp32"});
  const test::Outcome as_source = train(folder_ / "source", little);
  const test::Outcome as_fp32 = train(folder_ / "fp32", wide);
  ASSERT_EQ(as_source.code, 0) << as_source.err;
  ASSERT_EQ(as_fp32.code, 0) << as_fp32.err;
  EXPECT_EQ(results(folder_ / "source"), results(folder_ / "fp32"));

  const json lost = read_events(folder_ / "source").back()["exported"];
  EXPECT_GT(lost["moved_weights"], 10000);
  EXPECT_GT(lost["unshown_weights"], lost["moved_weights"].get<int64_t>() / 2);
  EXPECT_THAT(as_source.err, HasSubstr("moved by less than the exported dtype can show"));
  EXPECT_THAT(as_source.err, HasSubstr("--export_dtype fp32"));
  EXPECT_EQ(read_events(folder_ / "fp32").back()["exported"]["unshown_weights"], 0);
  EXPECT_THAT(as_fp32.err, Not(HasSubstr("dtype can show")));

  const SafetensorsFile file(folder_ / "fp32/model.safetensors");
  for (const TensorInfo& tensor : file.tensors()) EXPECT_EQ(tensor.dtype, DType::f32) << tensor.name;
  EXPECT_EQ(json::parse(test::read_all(folder_ / "fp32/config.json"))["torch_dtype"], "float32");
  EXPECT_EQ(test::read_all(folder_ / "fp32/tokenizer.json"), test::read_all(model_ / "tokenizer.json"));
  EXPECT_EQ(run({"eval", "--model", folder_ / "fp32", "--data", data_}).code, 0);
}

TEST_F(CliTest, ATrainingThatTheExportShowsIsNoWarning) {
  const test::Outcome outcome = train(output_, {"--learning_rate", "0.1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("dtype can show")));
}

// Logits stay small, for what the last norm divides by 10^37 the head multiplies by it; but that norm's
// gradient has the head's factor only, and is beyond fp32.
void let_gradients_overflow(const fs::path& model) {
  const fs::path path = model / "model.safetensors";
  const SafetensorsFile file(path);
  std::string bytes = test::read_all(path);
  const auto edit = [&](const char* name,
                        const std::function<float(int64_t row, int64_t col, float)>& value) {
    const TensorInfo& tensor = *file.find(name);
    const int64_t cols = tensor.shape.back();
    for (int64_t i = 0; i < element_count(tensor.shape); ++i) {
      char* const at = bytes.data() + tensor.offset + static_cast<size_t>(i) * sizeof(float);
      float number = 0;
      std::memcpy(&number, at, sizeof number);
      number = value(i / cols, i % cols, number);
      std::memcpy(at, &number, sizeof number);
    }
  };
  edit("model.embed_tokens.weight", [](int64_t, int64_t col, float old) { return col == 0 ? 100.0F : old; });
  edit("model.norm.weight", [](int64_t, int64_t, float) { return 2e-38F; });
  edit("lm_head.weight",
       [](int64_t row, int64_t col, float old) { return col == 0 ? (row % 2 == 0 ? 3e38F : -3e38F) : old; });
  test::write_all(path, bytes);
}

TEST_F(CliTest, AStepWhoseGradientNormIsNotFiniteIsSkipped) {
  edit_config([](json& config) { config["tie_word_embeddings"] = false; });
  const fs::path model = folder_ / "fresh";
  ASSERT_EQ(run({"init", "--config", model_, "--output", model, "--dtype", "fp32"}).code, 0);
  let_gradients_overflow(model);
  const auto train_fresh = [&](const fs::path& output, const std::string& steps) {
    return train(output, {"--model", model, "--compute_dtype", "fp32", "--max_steps", steps});
  };
  const test::Outcome outcome = train_fresh(output_, "3");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("SKIPPED: the gradient norm is not finite"));
  EXPECT_THAT(outcome.err, HasSubstr("3 step(s) were skipped"));
  const std::vector<json> events = read_events(output_);
  ASSERT_EQ(events.size(), 5u);
  for (size_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(events[step]["skipped"], true);
    EXPECT_TRUE(events[step]["grad_norm"].is_null()) << events[step];
    EXPECT_GT(events[step]["loss"], 1.0);
  }
  EXPECT_EQ(events[4]["skipped_steps"], 3);

  const fs::path given_up = folder_ / "given up";
  const test::Outcome patient = train(given_up, {"--model", model, "--compute_dtype", "fp32", "--max_steps",
                                                 "5", "--max_skipped_steps", "2"});
  EXPECT_EQ(patient.code, 5) << patient.err;
  EXPECT_THAT(patient.err, HasSubstr("3 step(s) in a row, over --max_skipped_steps 2"));
  EXPECT_EQ(read_events(given_up).size(), 5u) << "start, three steps, error";
  EXPECT_FALSE(fs::exists(given_up / "model.safetensors"));
  EXPECT_EQ(events[4]["exported"]["moved_weights"], 0);
  EXPECT_TRUE(test::read_all(output_ / "model.safetensors") == test::read_all(model / "model.safetensors"));
  ASSERT_EQ(train_fresh(folder_ / "one", "1").code, 0);
  EXPECT_EQ(read_events(folder_ / "one").back()["state_hash"], events[4]["state_hash"]);
}

TEST_F(CliTest, InitMakesAModelThatTrains) {
  const fs::path fresh = folder_ / "fresh";
  const test::Outcome outcome =
      run({"init", "--config", model_ / "config.json", "--seed", "5", "--output", fresh});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("random parameters"));
  EXPECT_EQ(test::list_all(fresh), (std::vector<std::string>{"config.json", "generation_config.json",
                                                             "model.safetensors", "tokenizer.json"}));
  ASSERT_EQ(train(output_, {"--model", fresh}).code, 0);
  const double loss = read_events(output_)[1]["loss"];
  EXPECT_NEAR(loss, std::log(264), 0.3) << "of a model that knows nothing";
  EXPECT_EQ(run({"init", "--config", model_, "--output", fresh}).code, 2) << "not empty";
  edit_config([](json& config) { config["model_type"] = "mystery"; });
  const test::Outcome refused = run({"init", "--config", model_, "--output", folder_ / "more"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("mystery"));
}

TEST_F(CliTest, EvalIsTheSameWhateverTheBatchSize) {
  const auto eval = [&](const std::string& batch, const Arguments& more = {}) {
    Arguments arguments{"eval", "--model", model_, "--data", data_, "--json", "--batch_size", batch};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const test::Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json one = eval("1");
  EXPECT_GT(one["tokens"], 80);
  EXPECT_NEAR(one["perplexity"].get<double>(),
              std::exp(one["nll_sum"].get<double>() / one["tokens"].get<double>()), 1e-9);
  for (const char* batch : {"2", "3", "100"}) {
    const json other = eval(batch);
    EXPECT_EQ(other["tokens"], one["tokens"]);
    EXPECT_DOUBLE_EQ(other["nll_sum"], one["nll_sum"]) << batch;
  }
  EXPECT_EQ(eval("2", {"--prefetch_distance", "0", "--threads", "1"}), eval("2"));
}

TEST_F(CliTest, GeneratesForSeveralPromptsAtOnce) {
  const auto generate = [&](Arguments arguments) {
    for (const char* text :
         {"generate", "--max_new_tokens", "6", "--compute_dtype", "fp32", "--json", "--model"}) {
      arguments.push_back(text);
    }
    std::rotate(arguments.begin(), std::find(arguments.begin(), arguments.end(), "generate"),
                arguments.end());
    arguments.insert(std::find(arguments.begin(), arguments.end(), "--model") + 1, model_);
    const test::Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out)["results"];
  };
  const json both = generate({"--prompt", "Who are you?", "--prompt", "Water"});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["prompt"], "Who are you?");
  EXPECT_EQ(both[0]["prompt_ids"].size(), 12u);
  EXPECT_EQ(both[1]["prompt_ids"].size(), 5u);
  EXPECT_EQ(both[1], generate({"--prompt", "Water"})[0]);
  EXPECT_LE(both[0]["ids"].size(), 6u);
  EXPECT_GE(both[0]["ids"].size(), 1u);
  const test::Outcome empty = run({"generate", "--model", model_, "--prompt", ""});
  EXPECT_EQ(empty.code, 2) << empty.err;
}

TEST_F(CliTest, TokenizesLines) {
  const test::Outcome outcome = run({"tokenize", "--model", model_}, "ab\n\na<|im_end|>");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  std::string first, second, third;
  std::getline(lines, first), std::getline(lines, second), std::getline(lines, third);
  EXPECT_EQ(second, "");
  EXPECT_EQ(first.substr(0, first.find(' ')) + " 2", third);
  EXPECT_EQ(std::count(first.begin(), first.end(), ' '), 1);
  const test::Outcome bad = run({"tokenize", "--model", model_}, "fine\n\xff\n");
  EXPECT_EQ(bad.code, 3);
  EXPECT_THAT(bad.err, HasSubstr("line 2"));
}

TEST_F(CliTest, ASignalEndsTheRunAfterItsStep) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    test::ChildProcess child(command(train_arguments(output_, {"--max_steps", "100000000"})));
    ASSERT_TRUE(child.wait_for_error_text("step 2/"));
    child.send_signal(signal);
    const test::Outcome outcome = child.finish();
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--resume"));
    EXPECT_EQ(test::list_all(output_), (std::vector<std::string>{"checkpoint", "events.jsonl"}));
    EXPECT_EQ(read_events(output_).back()["event"], "interrupted");
    fs::remove_all(output_);
  }
}

TEST_F(CliTest, WrongCommandLines) {
  expect_failure({}, 2, {"which command?"});
  expect_failure({"trian"}, 2, {"Did you mean train?"});
  expect_train_failure(2, {"--learing_rate", "Did you mean --learning_rate?"}, {"--learing_rate", "1"});
  expect_train_failure(2, {"--max_steps"}, {"--max_steps", "many"});
  expect_train_failure(2, {"too large"}, {"--per_device_train_batch_size", "9000000000"});
  EXPECT_EQ(run({"--help"}).code, 0);
}

TEST_F(CliTest, ModelFoldersThatAreNotWhole) {
  fs::remove(model_ / "tokenizer.json");
  expect_train_failure(3, {"tokenizer.json"});
  fs::remove(model_ / "model.safetensors");
  expect_train_failure(3, {"there are no weights", model_});
  test::write_all(model_ / "model.safetensors.index.json",
                  "{\"weight_map\": {\"model.norm.weight\": \"model-00001-of-00001.safetensors\"}}");
  expect_train_failure(3, {"shard", "model-00001-of-00001.safetensors is missing"});
  fs::remove(model_ / "config.json");
  expect_train_failure(3, {"config.json"});
  fs::remove_all(model_);
  expect_train_failure(3, {"no model folder"});
}

TEST_F(CliTest, DamagedWeightFiles) {
  const fs::path file = model_ / "model.safetensors";
  const std::string whole = test::read_all(file);
  test::write_all(file, whole.substr(0, whole.size() - 100));
  expect_train_failure(3, {"model.safetensors"});
  test::write_all(file, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + whole.substr(8));
  expect_train_failure(3, {"model.safetensors"});
  test::write_all(file, "");
  expect_train_failure(3, {"model.safetensors"});
}

TEST_F(CliTest, ConfigsThatDoNotFit) {
  const std::string whole = test::read_all(model_ / "config.json");
  edit_config([](json& config) { config.erase("hidden_size"); });
  expect_train_failure(3, {"config.json", "hidden_size", "missing"});
  test::write_all(model_ / "config.json", whole);
  edit_config([](json& config) { config["num_hidden_layers"] = "two"; });
  expect_train_failure(3, {"config.json", "num_hidden_layers"});
  test::write_all(model_ / "config.json", whole);
  edit_config([](json& config) { config["num_hidden_layers"] = 3; });
  expect_train_failure(3, {"model.layers.2.", "Is a shard missing?"});
  test::write_all(model_ / "config.json", whole);
  edit_config([](json& config) { config["model_type"] = "mystery"; });
  expect_train_failure(3, {"mystery"});
  test::write_all(model_ / "config.json", whole.substr(0, 40));
  expect_train_failure(3, {"config.json", "JSON"});
}

TEST_F(CliTest, DataThatCannotBeLearntFrom) {
  test::write_all(data_, "");
  expect_train_failure(3, {"data.jsonl", "empty"});
  test::write_all(data_, std::string(kRows) + "{\"text\": \"\"}\n");
  expect_train_failure(3, {"data.jsonl:5"});
  test::write_all(data_, "{\"prompt\": \"much too long\", \"completion\": \"x\"}\n");
  expect_train_failure(5, {"data.jsonl", "all labels masked"}, {"--max_seq_length", "4"});
  fs::remove(data_);
  expect_train_failure(3, {"data.jsonl"});
  expect_train_failure(3, {"there is no data file ", "/rows. Is"}, {"--data", folder_ / "rows"});
  test::write_all(folder_ / "rows", "text");
  expect_train_failure(3, {"the kind of file without extension is not supported"},
                       {"--data", folder_ / "rows"});
}

TEST_F(CliTest, RowsWithoutLabelsAndCutRowsAreNamed) {
  test::write_all(data_,
                  "{\"prompt\": \"much too long\", \"completion\": \"x\"}\n"
                  "{\"prompt\": \"ab\", \"completion\": \"cdefghijklmnop\"}\n");
  const test::Outcome outcome = train(output_, {"--max_seq_length", "8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 row(s) cut at --max_seq_length: " + data_.string() + ":2"));
  EXPECT_THAT(outcome.err,
              HasSubstr("1 row(s) dropped: no token to learn is left: " + data_.string() + ":1"));
  EXPECT_EQ(read_events(output_)[0]["data"]["dropped_rows"], 1);
}

TEST_F(CliTest, TokensOutsideOfTheVocabulary) {
  json tokenizer = json::parse(test::read_all(model_ / "tokenizer.json"));
  json extra = tokenizer["added_tokens"][0];
  extra["id"] = 264;
  extra["content"] = "<|beyond|>";
  tokenizer["added_tokens"].push_back(extra);
  test::write_all(model_ / "tokenizer.json", tokenizer.dump());
  test::write_all(data_, "{\"text\": \"fine\"}\n{\"text\": \"not <|beyond|> fine\"}\n");
  expect_train_failure(3, {"data.jsonl:2", "token id 264", "264"});
}

TEST_F(CliTest, OutputsThatMustNotBeTouched) {
  fs::create_directory(folder_ / "foreign");
  test::write_all(folder_ / "foreign/thesis.tex", "years of work");
  const auto expect_refused = [&](const fs::path& output, const std::string& text) {
    const test::Outcome outcome = train(output);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  expect_refused(folder_ / "foreign", "thesis.tex");
  EXPECT_EQ(test::list_all(folder_ / "foreign"), std::vector<std::string>{"thesis.tex"});
  expect_refused(model_, "something already");
  expect_refused(data_, "not a folder");
  ASSERT_EQ(train(output_).code, 0);
  expect_refused(output_, "out holds");
}

// As root, which may write anywhere, the program runs as nobody.
TEST_F(CliTest, AnOutputThatCannotBeWritten) {
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms(0555));
  constexpr uid_t kNobody = 65534;
  const auto drop_rights = [] { return ::geteuid() != 0 || ::setuid(kNobody) == 0; };
  const test::Outcome outcome =
      test::ChildProcess(command(train_arguments(folder_ / "closed/out")), drop_rights).finish();
  if (outcome.code == 120 || outcome.code == 127) GTEST_SKIP() << "the program cannot be run as nobody here";
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Permission denied"));
  EXPECT_TRUE(test::list_all(folder_ / "closed").empty());
}

TEST_F(CliTest, ALossThatIsNotANumberStopsTheRunAndNamesItsRow) {
  const SafetensorsFile file(model_ / "model.safetensors");
  const TensorInfo* norm = file.find("model.norm.weight");
  ASSERT_NE(norm, nullptr);
  std::string bytes = test::read_all(file.path());
  ASSERT_EQ(norm->dtype, DType::f16);
  bytes[norm->offset + 1] = 0x7e;  // half of a quiet NaN
  test::write_all(file.path(), bytes);
  const test::Outcome outcome = train(output_);
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("the loss of step 1 is not a finite number"));
  EXPECT_THAT(outcome.err, HasSubstr(data_.string() + ":"));
  EXPECT_EQ(test::list_all(output_), std::vector<std::string>{"events.jsonl"});
  EXPECT_EQ(read_events(output_).back()["event"], "error");
  EXPECT_EQ(run({"eval", "--model", model_, "--data", data_}).code, 5);
}

// `ulimit -f`, which the kernel treats like a disk that is full.
TEST_F(CliTest, ADiskThatFillsUpLeavesNothingHalfWritten) {
  const auto limit_files = [] {
    const rlimit limit{.rlim_cur = 32768, .rlim_max = 32768};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  };
  ASSERT_GT(fs::file_size(model_ / "model.safetensors"), 32768u);
  test::ChildProcess child(command(train_arguments(output_)), limit_files);
  const test::Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("model.safetensors"));
  EXPECT_EQ(test::list_all(output_), std::vector<std::string>{"events.jsonl"});
  EXPECT_EQ(read_events(output_).back()["event"], "error");
}

TEST_F(CliTest, ImportRefusesWhatIsNoGguf) {
  expect_failure({"import", folder_ / "absent.gguf", "--output", output_}, 3, {"absent.gguf"});
  test::write_all(folder_ / "bad.gguf", "GGUF and then nothing of it");
  expect_failure({"import", folder_ / "bad.gguf", "--output", output_}, 3, {"bad.gguf"});
}

}  // namespace
}  // namespace sluice
