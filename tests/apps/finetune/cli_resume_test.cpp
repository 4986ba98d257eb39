// `finetune train` on three tiers, its saved states, and --resume: from outside (docs/resume.md).
#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <random>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>

#include "engine/store/manifest_folder.h"
#include "tests/support/resume_trial.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::kInterrupted;
using test::Outcome;
using test::run_results;
using ::testing::HasSubstr;
using ::testing::Not;

class CliResume : public test::ResumeTrial {};

std::vector<std::string> model_files() {
  return {"config.json", "events.jsonl", "generation_config.json", "model.safetensors", "tokenizer.json"};
}

// What is left of a drive after a run: the folder's lock.
void expect_no_slabs(const fs::path& drive) {
  EXPECT_EQ(test::list_all(drive / "sluice"), std::vector<std::string>{"lock"}) << drive;
}

TEST_F(CliResume, WhereTheStateLivesDoesNotChangeTheBits) {
  const json in_ram = expected("4");
  const std::vector<Arguments> ways = {
      spill("a", "moments"),
      spill("a", "gradients"),
      spill("a"),
      joined(spill("a"), {"--io", "threads"}),
      joined(spill("a"), {"--layer_inputs", "disk"}),
      joined(spill("a,b,c"), {"--save_steps", "1", "--threads", "1"}),
      joined(spill("a"), {"--save_steps", "2", "--prefetch_distance", "3", "--delay_seed", "7"}),
      {"--save_steps", "1"},
  };
  for (size_t way = 0; way < ways.size(); ++way) {
    SCOPED_TRACE(way);
    const fs::path output = folder_ / ("out" + std::to_string(way));
    const Outcome outcome = train(output, joined({"--max_steps", "4"}, ways[way]));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(run_results(output), in_ram);
    EXPECT_EQ(test::list_all(output), model_files());
  }
  for (const char* drive : {"a", "b", "c"}) expect_no_slabs(folder_ / drive);
}

TEST_F(CliResume, ThreeStepsAndThreeMoreAreSix) {
  const json six = expected("6");
  struct Change {
    Arguments before, after;
  };
  const std::vector<Change> changes = {
      {{}, {}},
      {{}, spill("a")},
      {spill("a"), {}},
      {spill("a"), spill("a,b,c")},
      {spill("a,b,c", "moments"), spill("c,d", "gradients")},
      {joined(spill("a"), {"--io", "threads", "--threads", "1", "--prefetch_distance", "0"}),
       joined(spill("a"), {"--io", "auto", "--threads", "3", "--prefetch_distance", "3"})},
      {{"--save_steps", "2"}, {"--recompute", "all", "--save_steps", "1", "--device_memory", "64MiB"}},
      {joined(spill("a"), {"--host_memory", "1GiB"}), joined(spill("a"), {"--save_steps", "1"})},
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    const fs::path output = folder_ / ("out" + std::to_string(i));
    interrupt(output, changes[i].before);
    EXPECT_EQ(test::read_events(output).back()["event"], "interrupted");
    EXPECT_NE(newest_number(output / "checkpoint"), 0u);
    const Outcome outcome = resume(output, changes[i].after);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("Going on after step 3 of 6"));
    EXPECT_THAT(outcome.err, HasSubstr("step 4/6"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("step 3/6")));
    EXPECT_EQ(run_results(output), six);
    EXPECT_EQ(test::list_all(output), model_files());
  }
  for (const char* drive : {"a", "b", "c", "d"}) expect_no_slabs(folder_ / drive);
}

TEST_F(CliResume, TheDiaryHasEachStepOnce) {
  // The saved state is older than the diary, whose last line was cut by a crash.
  interrupt(output_, {"--save_steps", "1"});
  std::string diary = test::read_all(output_ / "events.jsonl");
  diary += "{\"event\":\"resume\",\"step\":3}\n{\"event\":\"step\",\"step\":4,\"loss\":1}\n{\"event\":\"st";
  test::write_all(output_ / "events.jsonl", diary);
  ASSERT_EQ(resume(output_).code, 0);
  std::vector<std::string> names;
  for (const json& event : test::read_events(output_)) names.push_back(event["event"]);
  EXPECT_EQ(names, (std::vector<std::string>{"start", "step", "step", "step", "interrupted", "resume",
                                             "resume", "step", "step", "step", "end"}));
  const json resumed = test::read_events(output_)[6];
  EXPECT_EQ(resumed["step"], 3);
  EXPECT_EQ(resumed["dropped_steps"], 1);
  EXPECT_EQ(run_results(output_), expected("6"));
}

TEST_F(CliResume, ARunMayBeInterruptedAgainAndAgain) {
  const Arguments drives = spill("a,b");
  ASSERT_EQ(train(output_, joined({"--max_steps", "6", "--stop_after", "1"}, drives)).code, kInterrupted);
  for (const char* step : {"2", "2", "5"}) {
    const Outcome outcome = resume(output_, joined({"--stop_after", step}, drives));
    EXPECT_EQ(outcome.code, kInterrupted) << outcome.err;
  }
  ASSERT_EQ(resume(output_, drives).code, 0);
  EXPECT_EQ(run_results(output_), expected("6"));
}

TEST_F(CliResume, AResultThatCannotBeWrittenCostsNoStep) {
  const Arguments drives = spill("a");
  interrupt(output_, drives);
  fs::create_directories(output_ / "model.safetensors/in_the_way");
  const Outcome failed = resume(output_, drives);
  EXPECT_EQ(failed.code, 1) << failed.err;
  EXPECT_THAT(failed.err, HasSubstr("The state after step 6 is saved in"));
  EXPECT_EQ(test::read_events(output_).back()["event"], "error");
  fs::remove_all(output_ / "model.safetensors");
  const Outcome outcome = resume(output_, drives);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(run_results(output_), expected("6"));
  expect_no_slabs(folder_ / "a");
}

TEST_F(CliResume, SlabsThatDoNotFitAreRefusedBeforeAnythingIsThere) {
  const auto limit_files = [] {
    const rlimit limit{.rlim_cur = 32768, .rlim_max = 32768};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  };
  test::ChildProcess child(command(train_arguments(output_, joined({"--max_steps", "6"}, spill("a")))),
                           limit_files);
  const Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_FALSE(fs::exists(output_));
  expect_no_slabs(folder_ / "a");
}

TEST_F(CliResume, WhatWouldChangeTheNumbersIsRefusedByName) {
  interrupt(output_);
  const fs::path other_data = folder_ / "other.jsonl";
  test::write_all(other_data, test::read_all(data_) + "{\"prompt\": \"More?\", \"completion\": \"More.\"}\n");
  const fs::path other_model = folder_ / "other_model";
  fs::copy(model_, other_model);
  json config = json::parse(test::read_all(other_model / "config.json"));
  config["rope_theta"] = 12345.0;
  test::write_all(other_model / "config.json", config.dump());
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"max_seq_length", "9"},
      {"on_bad_row", "skip"},
      {"per_device_train_batch_size", "2"},
      {"gradient_accumulation_steps", "1"},
      {"gradient_shards", "2"},
      {"seed", "43"},
      {"learning_rate", "2e-3"},
      {"lr_scheduler_type", "cosine"},
      {"warmup_steps", "1"},
      {"weight_decay", "0.1"},
      {"adam_beta1", "0.8"},
      {"adam_beta2", "0.98"},
      {"adam_epsilon", "1e-7"},
      {"max_grad_norm", "2"},
      {"optim", "adam"},
      {"max_steps", "7"},
      {"data", other_data},
      {"model", other_model},
  };
  const bool bf16 = test::read_events(output_)[0]["options"]["compute_dtype"] == "bf16";
  for (const auto& [option, value] : changes) {
    const Outcome outcome = resume(output_, {"--" + option, value});
    EXPECT_EQ(outcome.code, 2) << option << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--" + option));
    EXPECT_THAT(outcome.err, HasSubstr("Give the same as then"));
  }
  const Outcome gradients = resume(output_, {"--gradient_dtype", bf16 ? "fp32" : "bf16"});
  EXPECT_EQ(gradients.code, 2) << gradients.err;
  EXPECT_THAT(gradients.err, HasSubstr("--gradient_dtype"));
  const Outcome dtype = resume(output_, {"--compute_dtype", bf16 ? "fp32" : "bf16"});
  EXPECT_EQ(dtype.code, 2) << dtype.err;
  EXPECT_THAT(dtype.err, HasSubstr("--compute_dtype"));
  ASSERT_EQ(resume(output_).code, 0) << "and the state is as it was";
  EXPECT_EQ(run_results(output_), expected("6"));
}

TEST_F(CliResume, OtherKernelsNeedTheirOption) {
  interrupt(output_);
  Manifest manifest = recover(checkpoint())->manifest;
  manifest.identity.kernel_table = "another processor's";
  ++manifest.number;
  write_manifest(checkpoint(), manifest);
  const Outcome refused = resume(output_);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("--allow_different_kernels"));
  const Outcome allowed = resume(output_, {"--allow_different_kernels"});
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_THAT(allowed.err, HasSubstr("warning: the run in"));
}

TEST_F(CliResume, FoldersThatCannotBeResumedOrBegunAnew) {
  const Outcome nothing = resume(output_);
  EXPECT_EQ(nothing.code, 2) << nothing.err;
  EXPECT_THAT(nothing.err, HasSubstr("nothing to go on from"));
  EXPECT_FALSE(fs::exists(output_));

  interrupt(output_);
  const Outcome anew = train(output_, {"--max_steps", "6"});
  EXPECT_EQ(anew.code, 2) << anew.err;
  EXPECT_THAT(anew.err, HasSubstr("--resume"));

  ASSERT_EQ(resume(output_).code, 0);
  const Outcome finished = resume(output_);
  EXPECT_EQ(finished.code, 2) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("finished run"));
}

TEST_F(CliResume, ADamagedSlabIsNamed) {
  interrupt(output_, spill("a"));
  fs::path slab;
  for (const auto& entry : fs::directory_iterator(folder_ / "a/sluice"))
    if (entry.path().extension() == ".slab") slab = entry.path();
  std::string bytes = test::read_all(slab);
  for (size_t at = 0; at < bytes.size(); at += 4096) bytes[at] = static_cast<char>(bytes[at] ^ 1);
  test::write_all(slab, bytes);
  const Outcome outcome = resume(output_, spill("a"));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("damaged on disk"));
  EXPECT_THAT(outcome.err, HasSubstr(slab.string()));
  fs::remove(slab);
  const Outcome gone = resume(output_, spill("a"));
  EXPECT_EQ(gone.code, 3) << gone.err;
  EXPECT_THAT(gone.err, HasSubstr(slab.filename().string()));
}

unsigned permissions(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

TEST_F(CliResume, ASecondRunIsRefusedWithThePidOfTheFirst) {
  test::ChildProcess first(
      command(train_arguments(output_, joined({"--max_steps", "100000000"}, spill("a")))));
  ASSERT_TRUE(first.wait_for_error_text("step 1/"));
  std::string pid = test::read_all(checkpoint() / "lock");
  pid.resize(pid.find(' '));
  EXPECT_EQ(permissions(checkpoint()), 0700u);
  EXPECT_EQ(permissions(folder_ / "a"), 0700u);
  EXPECT_EQ(permissions(folder_ / "a/sluice"), 0700u);
  for (const auto& entry : fs::directory_iterator(folder_ / "a/sluice"))
    EXPECT_EQ(permissions(entry.path()), 0600u) << entry.path();
  const std::vector<Outcome> others = {
      train(output_, {"--max_steps", "6"}),
      train(output_, {"--max_steps", "6", "--resume"}),
      train(folder_ / "other", joined({"--max_steps", "6"}, spill("b,a"))),
  };
  for (const Outcome& other : others) {
    EXPECT_EQ(other.code, 2) << other.err;
    EXPECT_THAT(other.err, HasSubstr("(pid " + pid + ")"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "other"));
  first.send_signal(SIGINT);
  const Outcome outcome = first.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
}

TEST_F(CliResume, SpillFoldersThatOthersCouldReplaceAreRefused) {
  fs::create_directory(folder_ / "real");
  fs::create_directory_symlink(folder_ / "real", folder_ / "link");
  fs::create_directory(folder_ / "open");
  fs::permissions(folder_ / "open", fs::perms::all);
  test::write_all(folder_ / "file", "");
  for (const char* name : {"link", "open", "file"}) {
    const Outcome outcome = train(output_, joined({"--max_steps", "2"}, spill(name)));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr((folder_ / name).string()));
    EXPECT_FALSE(fs::exists(output_));
  }
  fs::create_directory(folder_ / "real/mine");
  fs::create_directory_symlink(folder_ / "open", folder_ / "real/mine/sluice");
  const Outcome outcome = train(output_, joined({"--max_steps", "2"}, spill("real/mine")));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("symbolic link"));
}

TEST_F(CliResume, BudgetsAreRefusedWithTheNumberThatWouldDo) {
  const Outcome host = train(output_, joined({"--max_steps", "2", "--host_memory", "1KiB"}, spill("a")));
  EXPECT_EQ(host.code, 4) << host.err;
  EXPECT_THAT(host.err, HasSubstr("Try --host_memory"));
  const Outcome no_disk = train(output_, {"--max_steps", "2", "--host_memory", "1KiB"});
  EXPECT_EQ(no_disk.code, 4) << no_disk.err;
  EXPECT_THAT(no_disk.err, HasSubstr("--spill_dir"));
  const Outcome writes =
      train(output_, joined({"--max_steps", "100000", "--ssd_write_limit", "1GiB"}, spill("a")));
  EXPECT_EQ(writes.code, 4) << writes.err;
  EXPECT_THAT(writes.err, HasSubstr("--ssd_write_limit"));
  EXPECT_EQ(train(output_, {"--max_steps", "2", "--spill", "all"}).code, 2);
  EXPECT_FALSE(fs::exists(output_));
}

TEST_F(CliResume, PlanShowsTheDrives) {
  const Outcome outcome = run(joined({"plan", "--model", model_, "--max_seq_length", "64", "--max_steps",
                                      "10", "--save_steps", "4", "--json"},
                                     spill("a")));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json plan = json::parse(outcome.out);
  EXPECT_GT(plan["peak_bytes"]["disk"], 0);
  const json& drives = plan["drives"];
  EXPECT_GT(drives["read_bytes_per_step"], 0);
  EXPECT_GT(drives["written_bytes_per_step"], 0);
  EXPECT_EQ(drives["saves"], 3);  // 4, 8, and at the end
  EXPECT_GT(plan["prediction"]["written_bytes_per_day"], drives["written_bytes_per_step"]);
  EXPECT_EQ(drives["written_bytes_per_run"].get<uint64_t>(),
            drives["written_bytes_at_start"].get<uint64_t>() +
                10 * drives["written_bytes_per_step"].get<uint64_t>() +
                3 * drives["written_bytes_per_save"].get<uint64_t>() +
                drives["written_bytes_for_result"].get<uint64_t>());
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

TEST_F(CliResume, WhatPartsOfARunWriteAddsUp) {
  interrupt(output_, spill("a"));
  const json interrupted = test::read_events(output_).back();
  const uint64_t before = interrupted["written_bytes"];
  EXPECT_GT(before, 0u);
  // The limit is for all parts together.
  const Outcome refused = resume(output_, joined(spill("a"), {"--ssd_write_limit", std::to_string(before)}));
  EXPECT_EQ(refused.code, 4) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("of it already"));
  EXPECT_EQ(test::read_events(output_).back(), interrupted);
  ASSERT_EQ(resume(output_, spill("a")).code, 0);
  const json end = test::read_events(output_).back();
  EXPECT_GT(end["written_bytes"], before);
  EXPECT_GT(end["written_bytes_per_day"], 0);
}

// Where the run was too fast for the signal, it is run again.
TEST_F(CliResume, ASignalInTheMiddle) {
  const json all = expected("500");
  for (const Arguments& where : {Arguments{}, spill("a")}) {
    const Arguments arguments = joined({"--max_steps", "500"}, where);
    int code = 0;
    for (int tries = 0; code == 0 && tries < 5; ++tries) {
      fs::remove_all(output_);
      test::ChildProcess child(command(train_arguments(output_, arguments)));
      ASSERT_TRUE(child.wait_for_error_text("step 2/"));
      child.send_signal(SIGTERM);
      code = child.finish().code;
    }
    ASSERT_EQ(code, kInterrupted);
    const Outcome outcome = train(output_, joined(arguments, {"--resume"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(run_results(output_), all);
  }
}

// Killed at random moments, again and again; tests/kill.sh does it at length.
TEST_F(CliResume, KillsLoseNothing) {
  const json all = expected("60");
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::minstd_rand random(seed);
  const Arguments drives = joined(spill("a,b"), {"--max_steps", "60", "--save_steps", "1"});
  int last = 0;  // step that has been seen
  for (int kill = 0; kill < 8; ++kill) {
    const bool saved = fs::exists(checkpoint()) && newest_number(checkpoint()) != 0;
    const Arguments more = saved ? Arguments{"--resume"} : Arguments{};
    test::ChildProcess child(command(train_arguments(output_, joined(drives, more))));
    last += static_cast<int>(random() % 6);
    if (!child.wait_for_error_text(last == 0 ? "Plan" : "step " + std::to_string(last) + "/")) {
      ADD_FAILURE() << child.finish().err;
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    child.send_signal(SIGKILL);
    (void)child.finish();
    if (fs::exists(output_ / "config.json")) break;  // it came to its end
    last = 0;
    if (const auto found = fs::exists(checkpoint()) ? recover(checkpoint()) : std::nullopt)
      last = found->manifest.facts.run["progress"]["steps"].get<int>() + 1;
  }
  if (!fs::exists(output_ / "config.json")) {
    const bool saved = fs::exists(checkpoint()) && newest_number(checkpoint()) != 0;
    const Outcome outcome = train(output_, joined(drives, saved ? Arguments{"--resume"} : Arguments{}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_no_slabs(folder_ / "a");
  }
  EXPECT_EQ(run_results(output_), all);
}

}  // namespace
}  // namespace sluice
