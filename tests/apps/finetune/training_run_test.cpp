// What a run does when a drive fails it on the way: in this process, whose calls to the disk fail when they
// are told to.
#include "apps/finetune/training_run.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <gmock/gmock.h>
#include <iostream>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <variant>

#include "apps/finetune/output_folder.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"
#include "tests/support/cli_trial.h"

namespace {

enum class Fault {
  none,
  manifest_full,  // ENOSPC where a manifest is written
  slab_write,     // EIO
  slab_read,
  slab_sync,
  folder_sync,  // of a folder, after a name appeared in it
  slab_hang,    // a write that never returns, and the clock of the watchdog runs on
};
std::atomic<Fault> fault = Fault::none;
std::atomic<int64_t> watchdog_now_ns = 1;

bool is_file(int descriptor, const char* middle, const char* end) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  const std::string_view name(path, size > 0 ? static_cast<size_t>(size) : 0);
  return name.find(middle) != std::string_view::npos && name.ends_with(end);
}
bool is_slab(int descriptor) {
  return is_file(descriptor, "/state-", ".slab");
}
int fail(int error_number) {
  errno = error_number;
  return -1;
}

}  // namespace

// They stand before libc's in the linker's eyes.
extern "C" {

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  if (fault == Fault::manifest_full && is_file(descriptor, "/generation-", ".manifest.partial"))
    return fail(ENOSPC);
  if (fault == Fault::slab_write && is_slab(descriptor)) return fail(EIO);
  if (fault == Fault::slab_hang && is_slab(descriptor)) {
    watchdog_now_ns += 1'000'000'000'000;
    while (true) ::pause();
  }
  return ::syscall(SYS_pwrite64, descriptor, data, size, offset);
}

ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  if (fault == Fault::slab_read && is_slab(descriptor)) return fail(EIO);
  return ::syscall(SYS_pread64, descriptor, data, size, offset);
}

int fdatasync(int descriptor) {
  if (fault == Fault::slab_sync && is_slab(descriptor)) return fail(EIO);
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}

int fsync(int descriptor) {
  struct stat info {};
  if (fault == Fault::folder_sync && ::fstat(descriptor, &info) == 0 && S_ISDIR(info.st_mode))
    return fail(EIO);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
}

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kRows =
    "{\"prompt\": \"Who are you?\", \"completion\": \" A sluice.\"}\n"
    "{\"prompt\": \"What is a sluice?\", \"completion\": \" A gate for water.\"}\n"
    "{\"prompt\": \"Why?\", \"completion\": \" To let through what fits, and to hold what does not.\"}\n";

constexpr uint64_t kManifestBytes = 16 << 10;  // of these models, at most

// After a step's gradients have been made and before its update: what came before it has all ended.
using Between = std::function<void(int64_t step)>;

class TrainingRunTest : public test::CliTrial {
 protected:
  TrainingRunTest() : CliTrial(kRows) {}
  ~TrainingRunTest() override { fault = Fault::none; }

  // As the command does it: the exit code.
  int train(const Arguments& more, const Between& between = {}) {
    const ParsedCommand command =
        parse_command_line(joined({"train", "--model", model_, "--data", data_, "--output", output_,
                                   "--learning_rate", "1e-3", "--max_steps", "6", "--io", "threads"},
                                  more));
    const auto& options = std::get<TrainOptions>(command);
    IoGuard guard(options.state.io_timeout, [] { return watchdog_now_ns.load(); });
    guard.set_last_words(last_words_);
    Checkpoint checkpoint(options.output, options.state, guard.observers());
    TrainSetup setup = set_up_training(options);
    std::optional<RunProgress> resumed;
    if (options.state.resume) resumed = recorded_progress(checkpoint.find_saved().facts.run);
    const PeakMemory memory;
    const InterruptWatch watch;
    checkpoint.take_output();
    EXPECT_TRUE(checkpoint.open(setup.model.config, setup.trainer, watch));
    Trainer trainer(*setup.runtime.device, *setup.runtime.pool, setup.model.config, setup.trainer);
    if (resumed) {
      trainer.engine().restore();
    } else {
      load_weights(setup.model.folder, trainer.engine().store());
    }
    int64_t step = resumed ? resumed->facts.steps : 0;
    trainer.observe_phases([&](Phase ended, const gpu::Event&) {
      if (ended != Phase::backward) return;
      trainer.engine().wait();
      if (between) between(++step);
    });
    make_output_folder(options.output);
    return TrainingRun({options, setup, trainer, checkpoint, memory, watch, guard},
                       run_settings(options, setup), resumed)
        .run();
  }
  // The Error that ends it.
  Error failing(const Arguments& more, const Between& between) {
    try {
      ADD_FAILURE() << "ended with " << train(more, between);
    } catch (const Error& error) {
      fault = Fault::none;
      return error;
    }
    return {ErrorKind::usage, ""};
  }
  // `what` strikes all that comes between step `from` and step `to`.
  static Between struck(Fault what, int64_t from, int64_t to) {
    return [=](int64_t step) {
      if (step == from) fault = what;
      if (step == to) fault = Fault::none;
    };
  }

  json events(const std::string& name) const {
    json found = json::array();
    for (const json& event : test::read_events(output_))
      if (event["event"] == name) found.push_back(event);
    return found;
  }
  std::vector<int64_t> steps_of(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const json& event : events(name)) steps.push_back(event["step"]);
    return steps;
  }
  json losses_and_hash() const {
    json all = json::array();
    for (const json& event : events("step")) all.push_back(event["loss"]);
    return {all, events("end").back()["state_hash"]};
  }
  // Of a run that nothing disturbs.
  json undisturbed() {
    EXPECT_EQ(train({}), 0);
    const json found = losses_and_hash();
    fs::remove_all(output_);
    return found;
  }
  int64_t saved_step() const {
    const std::optional<Recovered> found = recover(output_ / "checkpoint");
    return found ? recorded_progress(found->manifest.facts.run).facts.steps : 0;
  }
  void expect_resumes(const Arguments& more, const json& expected) {
    ASSERT_EQ(train(joined(more, {"--resume"})), 0);
    EXPECT_EQ(losses_and_hash(), expected);
  }

  std::function<void()> last_words_;  // of a run that is given up

  // Where the states are, each saved after every step.
  std::vector<Arguments> places() const {
    const std::string drive = folder_ / "drive";
    return {{"--save_steps", "1"},
            {"--save_steps", "1", "--spill_dir", drive, "--spill", "moments"},
            {"--save_steps", "1", "--spill_dir", drive, "--spill", "all"}};
  }
};

// The process ends with the transfer in flight. What it leaves is looked at from within: nobody else knows
// its folder, or would remove it.
using TrainingRunDeathTest = TrainingRunTest;
TEST_F(TrainingRunDeathTest, ATransferThatNeverReturnsIsNamedAndEndsTheRun) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string drive = folder_ / "drive";
  last_words_ = [this] {
    const json late = events("io_late").at(0), error = events("error").at(0);
    std::cerr << "saved after step " << saved_step() << ", " << late["kind"] << late["work"] << late["step"]
              << ", same transfer " << (late["offset"] == error["offset"] && late["file"] == error["file"]);
    fs::remove_all(folder_.path());
    std::cerr << ", removed " << !fs::exists(folder_.path()) << "\n";
  };
  EXPECT_EXIT(
      train({"--save_steps", "1", "--spill_dir", drive, "--spill", "all", "--io_timeout", "0.4"},
            struck(Fault::slab_hang, 3, -1)),
      ::testing::ExitedWithCode(1),
      "warning: the write of [0-9]+ bytes of .*state-.*slab at offset [0-9]+ \\(write states of .*, step "
      "3\\) has not returned for .*\n"
      "finetune: the write of .*hangs.*--resume.*\n"
      "saved after step 2, \"write\"\"write states of .*\"3, same transfer 1, removed 1");
}

TEST_F(TrainingRunTest, ASaveThatFailsEndsNothing) {
  const json expected = undisturbed();
  for (const Arguments& place : places()) {
    SCOPED_TRACE(place.size());
    fs::remove_all(output_);
    EXPECT_EQ(train(place, struck(Fault::manifest_full, 3, 5)), 0);
    EXPECT_EQ(losses_and_hash(), expected);
    EXPECT_THAT(steps_of("save_failed"), ElementsAre(3, 4));
    EXPECT_THAT(events("save_failed")[0]["message"].get<std::string>(),
                AllOf(HasSubstr("generation-"), HasSubstr("No space left")));
    EXPECT_FALSE(fs::exists(output_ / "checkpoint"));
  }
}

// Updates that come after a save that failed leave alone what the generation before it consists of.
TEST_F(TrainingRunTest, TheLastGenerationStaysWhole) {
  const json expected = undisturbed();
  for (const Fault what : {Fault::manifest_full, Fault::slab_sync}) {
    for (const Arguments& place : places()) {
      SCOPED_TRACE(place.size());
      fs::remove_all(output_);
      const Error error = failing(place, [&](int64_t step) {
        if (step == 3) fault = what;
        if (step == 6) throw Error(ErrorKind::runtime, "a fault of another kind");
      });
      EXPECT_STREQ(error.what(), "a fault of another kind");
      EXPECT_THAT(steps_of("save_failed"), ElementsAre(3, 4, 5));
      EXPECT_EQ(saved_step(), 2);
      expect_resumes(place, expected);
    }
  }
}

// What RAM has is written by the save itself.
TEST_F(TrainingRunTest, ASaveMayFailInTheMiddleOfASlab) {
  const json expected = undisturbed();
  const Arguments place = places()[0];
  EXPECT_EQ(train(place, struck(Fault::slab_write, 3, 5)), 0);
  EXPECT_EQ(losses_and_hash(), expected);
  EXPECT_THAT(steps_of("save_failed"), ElementsAre(3, 4));
  EXPECT_THAT(events("save_failed")[0]["message"].get<std::string>(),
              AllOf(HasSubstr("model."), HasSubstr(".slab at offset"), HasSubstr("Input/output error"),
                    HasSubstr("rive ")));
  fs::remove_all(output_);
  (void)failing(place, [](int64_t step) {
    if (step == 3) fault = Fault::slab_write;
    if (step == 6) throw Error(ErrorKind::runtime, "");
  });
  EXPECT_EQ(saved_step(), 2);
  expect_resumes(place, expected);
}

TEST_F(TrainingRunTest, OnlyTheLastSaveIsAnError) {
  const json expected = undisturbed();
  for (const Arguments& place : places()) {
    SCOPED_TRACE(place.size());
    fs::remove_all(output_);
    const Error error = failing(place, struck(Fault::manifest_full, 6, 0));
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the model is in"), HasSubstr("No space left")));
    EXPECT_EQ(losses_and_hash(), expected);
    EXPECT_EQ(test::read_events(output_).back()["event"], "end");
    EXPECT_TRUE(fs::exists(output_ / "model.safetensors"));
    EXPECT_FALSE(fs::exists(output_ / "checkpoint"));
  }
}

TEST_F(TrainingRunTest, WritesWhatThePlanSaid) {
  for (const Arguments& place : places()) {
    SCOPED_TRACE(place.size());
    fs::remove_all(output_);
    ASSERT_EQ(train(place), 0);
    const json start = events("start")[0], drives = start["plan"]["drives"];
    const uint64_t end = events("end")[0]["written_bytes"];
    // Behind the start: small tensors share checksum blocks, which are then written once for each.
    const auto measured = static_cast<double>(end - start["written_bytes"].get<uint64_t>());
    const double planned =
        drives["written_bytes_per_run"].get<double>() - drives["written_bytes_at_start"].get<double>();
    // Sections end within a page; the plan has no manifests, and a MiB for the result's folders.
    EXPECT_LE(measured, 1.02 * planned + 6 * kManifestBytes);
    EXPECT_GE(measured + (1 << 20), planned);
    uint64_t before = 0;
    for (const json& step : events("step")) {
      EXPECT_GE(step["written_bytes"], before);
      before = step["written_bytes"];
    }
    EXPECT_GE(end, before);
    EXPECT_DOUBLE_EQ(events("end")[0]["written_bytes_per_step"], static_cast<double>(end) / 6);
  }
}

TEST_F(TrainingRunTest, StopsBeforeItsWriteLimit) {
  const json expected = undisturbed();
  const Arguments spill{"--spill_dir", folder_ / "drive", "--spill", "all"};
  ASSERT_EQ(train(spill), 0);
  const json drives = events("start")[0]["plan"]["drives"];
  const uint64_t per_step = drives["written_bytes_per_step"];
  const uint64_t limit = events("step")[4]["written_bytes"];  // behind step 4, and part of its update
  fs::remove_all(output_);
  ASSERT_EQ(train(joined(spill, {"--ssd_write_limit", std::to_string(limit)})), 4);
  const json last = test::read_events(output_).back();
  const int64_t stopped_at = last["step"];
  EXPECT_EQ(last["event"], "write_limit");
  EXPECT_EQ(last["limit_bytes"], limit);
  EXPECT_LE(last["written_bytes"], limit);
  EXPECT_GT(last["written_bytes"].get<uint64_t>() + 2 * per_step, limit);  // not much too early
  EXPECT_GE(stopped_at, 2);
  EXPECT_LT(stopped_at, 5);
  EXPECT_EQ(saved_step(), stopped_at);
  EXPECT_FALSE(fs::exists(output_ / "model.safetensors"));

  // Going on counts on: with the same limit there is no step to make.
  const uint64_t before = last["written_bytes"];
  ASSERT_EQ(train(joined(spill, {"--resume", "--ssd_write_limit", std::to_string(limit)})), 4);
  EXPECT_EQ(saved_step(), stopped_at);
  EXPECT_GE(test::read_events(output_).back()["written_bytes"], before);
  expect_resumes(spill, expected);
  EXPECT_GT(events("end")[0]["written_bytes"], before + per_step);
}

TEST_F(TrainingRunTest, KeepsTheStateWhereTheResultWouldPassTheWriteLimit) {
  const json expected = undisturbed();
  ASSERT_EQ(train({}), 0);
  const json drives = events("start")[0]["plan"]["drives"];
  // Room for a save, and not quite for the result, for which the plan has a MiB more than it takes.
  const uint64_t limit = drives["written_bytes_for_result"].get<uint64_t>() - 1;
  ASSERT_LT(drives["written_bytes_per_save"], limit);
  fs::remove_all(output_);
  ASSERT_EQ(train({"--ssd_write_limit", std::to_string(limit)}), 4);
  EXPECT_EQ(test::read_events(output_).back()["event"], "write_limit");
  EXPECT_EQ(saved_step(), 6);
  EXPECT_FALSE(fs::exists(output_ / "model.safetensors"));
  expect_resumes({}, expected);
}

TEST_F(TrainingRunTest, AnInterruptedRunThatCannotSaveSaysSo) {
  const json expected = undisturbed();
  for (const Arguments& place : places()) {
    fs::remove_all(output_);
    const Error error = failing(joined(place, {"--stop_after", "4"}), struck(Fault::manifest_full, 4, 0));
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_EQ(test::read_events(output_).back()["event"], "error");
    EXPECT_EQ(saved_step(), 3);
    expect_resumes(place, expected);
  }
}

// Only a save that may or may not be there ends the run: both generations stay whole.
TEST_F(TrainingRunTest, ASaveInDoubtEndsTheRun) {
  const json expected = undisturbed();
  for (const Arguments& place : places()) {
    SCOPED_TRACE(place.size());
    fs::remove_all(output_);
    const Error error = failing(place, struck(Fault::folder_sync, 3, 0));
    EXPECT_THAT(error.what(), HasSubstr("checkpoint"));
    EXPECT_EQ(saved_step(), 3);
    // As if the power had gone, and the name with it.
    fs::path newest;
    for (const auto& entry : fs::directory_iterator(output_ / "checkpoint"))
      if (entry.path().filename().string().starts_with("generation-"))
        newest = std::max(newest, entry.path());
    fs::remove(newest);
    EXPECT_EQ(saved_step(), 2);
    expect_resumes(place, expected);
  }
}

TEST_F(TrainingRunTest, AnErrorBetweenStepsSavesWhatHasBeenDone) {
  const json expected = undisturbed();
  const std::string drive = folder_ / "drive";
  for (const Arguments& place :
       std::vector<Arguments>{{}, {"--spill_dir", drive}, {"--spill_dir", drive, "--spill", "all"}}) {
    SCOPED_TRACE(place.size());
    fs::remove_all(output_);
    const Error error = failing(place, [](int64_t step) {
      if (step == 4) throw Error(ErrorKind::data, "row 7 is not what it was");
    });
    EXPECT_EQ(error.kind(), ErrorKind::data);
    EXPECT_EQ(test::read_events(output_).back()["event"], "error");
    EXPECT_EQ(saved_step(), 3);
    expect_resumes(place, expected);
  }
}

// The update of step 4 has its states in RAM by then; the weights of the next forward pass cannot be read.
TEST_F(TrainingRunTest, ADriveThatRefusesReadsEndsTheRun) {
  const json expected = undisturbed();
  const Arguments place{"--spill_dir", folder_ / "drive", "--spill", "all"};
  const Error error = failing(place, struck(Fault::slab_read, 4, 0));
  EXPECT_EQ(error.kind(), ErrorKind::runtime);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("model."), HasSubstr(".slab at offset"), HasSubstr("Input/output error"),
                    HasSubstr("rive "), HasSubstr("smartctl")));
  EXPECT_EQ(saved_step(), 4);
  expect_resumes(place, expected);
}

TEST_F(TrainingRunTest, ADriveThatRefusesWritesEndsTheRun) {
  const json expected = undisturbed();
  const Arguments place = places()[2];
  const Error error = failing(place, struck(Fault::slab_write, 4, 0));
  EXPECT_EQ(error.kind(), ErrorKind::runtime);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("optimizer step 4"), HasSubstr("model."), HasSubstr(".slab at offset"),
                    HasSubstr("Input/output error"), HasSubstr("rive "), HasSubstr("smartctl")));
  EXPECT_EQ(saved_step(), 3);
  expect_resumes(place, expected);
}

}  // namespace
}  // namespace sluice::finetune
