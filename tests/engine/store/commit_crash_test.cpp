#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "engine/store/state_file.h"
#include "io/thread_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/state_trial.h"

// A process that dies between any two calls that change a disk, or within a write, of a step and its commit.
// The calls are this program's own: they stand before libc's in the linker's eyes.
namespace {

std::atomic<int> calls_left = -1;   // until the process dies; negative: it lives
std::atomic<int> failing_sync = 0;  // errno of fdatasync
thread_local std::vector<std::string>* journal = nullptr;

// True: die within this call.
bool dies(const char* name) {
  if (journal != nullptr) journal->emplace_back(name);
  return calls_left.load() >= 0 && calls_left.fetch_sub(1) == 0;
}

constexpr int kDied = 42;

}  // namespace

extern "C" {

int fsync(int descriptor) {
  if (dies("fsync")) ::_exit(kDied);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

int fdatasync(int descriptor) {
  if (dies("fdatasync")) ::_exit(kDied);
  if (failing_sync != 0) {
    errno = failing_sync;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}

int rename(const char* from, const char* to) noexcept {
  if (dies("rename")) ::_exit(kDied);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int unlink(const char* path) noexcept {
  if (dies("unlink")) ::_exit(kDied);
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  if (dies("pwrite")) {
    const size_t torn = size >= 8192 ? size / 2 / 4096 * 4096 : size / 2;  // O_DIRECT takes pages only
    ::syscall(SYS_pwrite64, descriptor, data, torn, offset);
    ::_exit(kDied);
  }
  return ::syscall(SYS_pwrite64, descriptor, data, size, offset);
}
}

namespace sluice {
namespace {

constexpr std::array<test::BlockSize, 3> kSizes = {{{2048, 256}, {256, 0}, {(1 << 19) + 2048, 0}}};

void write_step(StateFile& state, IoQueue& queue, uint64_t step, int slot) {
  for (int32_t i = 0; i < state.layout().block_count(); ++i)
    test::write_block(state, queue, BlockId{i}, slot, step);
}

bool holds_step(StateFile& state, IoQueue& queue, uint64_t step) {
  bool all = true;
  for (int32_t i = 0; i < state.layout().block_count(); ++i)
    all =
        test::block_holds(state, queue, BlockId{i}, state.generation().slots[static_cast<size_t>(i)], step) &&
        all;
  return all;
}

// One step from what is committed, and its commit.
void next_step(const std::filesystem::path& folder) {
  FolderLocks locks;
  ThreadQueue queue({.thread_count = 1});
  const auto state = StateFile::open(folder, {}, StateLayout(test::model_of_sizes(kSizes)), locks, {queue});
  const int64_t step = state->generation().facts.applied_step + 1;
  const auto slot = static_cast<uint8_t>(1 - state->generation().slots[0]);
  write_step(*state, queue, static_cast<uint64_t>(step), slot);
  state->commit({.applied_step = step}, std::vector<uint8_t>(3, slot));
}

// Whether it died.
bool child_dies_at_call(const std::filesystem::path& folder, int call) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    calls_left = call;
    try {
      next_step(folder);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kDied)) << status;
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

void create_store(const test::TemporaryFolder& folder) {
  FolderLocks locks;
  ThreadQueue queue({.thread_count = 1});
  const auto state = StateFile::create(test::options_in(folder, 2), StateLayout(test::model_of_sizes(kSizes)),
                                       locks, {queue});
  write_step(*state, queue, 0, 0);
  state->commit({.applied_step = 0}, std::vector<uint8_t>(3, 0));
}

TEST(CommitCrash, TheOldOrTheNewGenerationIsThereWhole) {
  const test::TemporaryFolder folder;
  create_store(folder);
  int64_t step = 0;
  int died = 0, kept_old = 0, took_new = 0;
  for (int call = 0; child_dies_at_call(folder / "state", call); ++call, ++died) {
    SCOPED_TRACE("call " + std::to_string(call));
    FolderLocks locks;
    ThreadQueue queue({.thread_count = 1});
    const auto state =
        StateFile::open(folder / "state", {}, StateLayout(test::model_of_sizes(kSizes)), locks, {queue});
    const int64_t found = state->generation().facts.applied_step;
    ASSERT_TRUE(found == step || found == step + 1) << found;
    ASSERT_TRUE(holds_step(*state, queue, static_cast<uint64_t>(found)));
    ASSERT_TRUE(state->warnings().empty());
    ++(found == step ? kept_old : took_new);
    step = found;
  }
  // 12 sections written, in two files each to be synced, a manifest to be written, synced, named and synced.
  EXPECT_GE(kept_old, 12 + 2 + 3);
  EXPECT_GE(took_new, 1);
  for (const char* name : {"state", "drive0", "drive1"})
    EXPECT_EQ(test::list_all(folder / name).size(), 2u) << "nothing is left over in " << name;
}

TEST(CommitCrash, CreationCanDieAnywhere) {
  const test::TemporaryFolder folder;
  bool died = true;
  int call = 0;
  for (; died; ++call) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      calls_left = call;
      create_store(folder);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFEXITED(status));
    died = WEXITSTATUS(status) != 0;
    ASSERT_LE(test::list_all(folder / "state").size(), 4u);
  }
  EXPECT_GT(call, 20);
  for (const char* name : {"state", "drive0", "drive1"})
    EXPECT_EQ(test::list_all(folder / name).size(), 2u) << "nothing is left over in " << name;
}

TEST(CommitCrash, SyncsComeInTheOrderThatAPowerCutNeeds) {
  const test::TemporaryFolder folder;
  FolderLocks locks;
  ThreadQueue queue;
  const auto state = StateFile::create(test::options_in(folder, 2), StateLayout(test::model_of_sizes(kSizes)),
                                       locks, {queue});
  state->commit({}, std::vector<uint8_t>(3, 0));
  std::vector<std::string> calls;
  journal = &calls;
  state->commit({}, std::vector<uint8_t>(3, 0));
  journal = nullptr;
  EXPECT_EQ(calls,
            (std::vector<std::string>{"fdatasync", "fdatasync",  // the slabs
                                      "unlink",                  // a torn manifest, were there one
                                      "pwrite", "fsync", "rename", "fsync",  // the manifest, and its name
                                      "rename", "unlink",                    // the old one
                                      "unlink"}));
}

TEST(CommitCrash, AfterAFailedSyncNothingIsSaved) {
  const test::TemporaryFolder folder;
  create_store(folder);
  {
    FolderLocks locks;
    ThreadQueue queue;
    const auto state =
        StateFile::open(folder / "state", {}, StateLayout(test::model_of_sizes(kSizes)), locks, {queue});
    write_step(*state, queue, 1, 1);
    failing_sync = EIO;
    const auto commit = [&] { state->commit({.applied_step = 1}, std::vector<uint8_t>(3, 1)); };
    test::expect_error(ErrorKind::runtime, {"sync", "state-"}, commit);
    failing_sync = 0;
    // The kernel says that all is well now; it has dropped the pages.
    test::expect_error(ErrorKind::runtime, {"cannot be saved any more", "sync"}, commit);
    EXPECT_EQ(state->generation().facts.applied_step, 0);
  }
  FolderLocks locks;
  ThreadQueue queue;
  const auto state =
      StateFile::open(folder / "state", {}, StateLayout(test::model_of_sizes(kSizes)), locks, {queue});
  EXPECT_TRUE(holds_step(*state, queue, 0));
}

}  // namespace
}  // namespace sluice
