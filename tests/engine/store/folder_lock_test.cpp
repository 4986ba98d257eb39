#include "engine/store/folder_lock.h"

#include <csignal>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/store/private_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using test::expect_error;
using test::TemporaryFolder;

// A process that locks the folder, says so, and holds it until it is killed.
class Holder {
 public:
  explicit Holder(const std::filesystem::path& folder) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        const FolderLock lock(folder);
        if (::write(pipe[1], "x", 1) == 1) ::pause();
      } catch (const Error&) {
      }
      ::_exit(1);
    }
    ::close(pipe[1]);
    char byte;
    EXPECT_EQ(::read(pipe[0], &byte, 1), 1) << "the child did not get the lock";
    ::close(pipe[0]);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { kill(); }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

void create_or_replace(const std::filesystem::path& path, const std::string& contents) {
  std::filesystem::remove(path);
  create_private_file(path);
  test::write_all(path, contents);
}

TEST(FolderLock, ASecondProcessIsRefusedWithTheHoldersPid) {
  const TemporaryFolder folder;
  Holder holder(folder.path());
  expect_error(ErrorKind::usage, {folder.path().string(), "pid " + std::to_string(holder.pid()) + ")"},
               [&] { FolderLock lock(folder.path()); });
  holder.kill();
  EXPECT_TRUE(std::filesystem::exists(folder / "lock")) << "stale, and no obstacle:";
  const FolderLock lock(folder.path());
  EXPECT_TRUE(test::read_all(folder / "lock").starts_with(std::to_string(::getpid()) + " "));
}

// The pid in the file of a run that died may be another process's by now, which has nothing to do with it.
TEST(FolderLock, APidThatWasUsedAgainHoldsNothing) {
  const TemporaryFolder folder, other;
  std::string left;
  {
    Holder holder(folder.path());
    left = test::read_all(folder / "lock");
  }
  const Holder alive(other.path());
  left.replace(0, left.find(' '), std::to_string(alive.pid()));
  test::write_all(folder / "lock", left);
  const FolderLock lock(folder.path());
  EXPECT_TRUE(test::read_all(folder / "lock").starts_with(std::to_string(::getpid()) + " "));
}

// Longer ones of an older version, or of a run that died within its write, leave nothing behind either.
TEST(FolderLock, WhatADeadRunLeftInTheFileIsNoObstacle) {
  const TemporaryFolder folder;
  for (const std::string& left :
       {std::string(), std::string("12"), std::string(5000, '7'), std::string("-1\n")}) {
    create_or_replace(folder / "lock", left);
    const FolderLock lock(folder.path());
    EXPECT_TRUE(test::read_all(folder / "lock").starts_with(std::to_string(::getpid()) + " "));
    EXPECT_LT(test::read_all(folder / "lock").size(), 512u);
  }
}

// A run may die while a program that it started lives on.
TEST(FolderLock, AProgramThatTheHolderStartedDoesNotKeepIt) {
  const TemporaryFolder folder;
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const FolderLock lock(folder.path());
    const pid_t program = ::fork();
    if (program == 0) {
      ::execlp("sleep", "sleep", "1000", nullptr);
      ::_exit(1);
    }
    if (::write(pipe[1], &program, sizeof(program)) == static_cast<ssize_t>(sizeof(program))) ::pause();
    ::_exit(1);
  }
  ::close(pipe[1]);
  pid_t program = -1;
  char byte;
  ASSERT_EQ(::read(pipe[0], &program, sizeof(program)), static_cast<ssize_t>(sizeof(program)));
  ::kill(pid, SIGKILL);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0) << "ends when the program has been started, and with it its copies";
  EXPECT_EQ(::kill(program, 0), 0);
  { const FolderLock lock(folder.path()); }
  ::kill(program, SIGKILL);
  ::close(pipe[0]);
}

// As in a container: the holder's pid is 1 there, and another process's here.
TEST(FolderLock, AHolderInAnotherPidNamespaceIsSaidToBeThere) {
  const TemporaryFolder folder;
  int held[2], named[2];
  ASSERT_EQ(::pipe(held), 0);
  ASSERT_EQ(::pipe(named), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
    const pid_t first = ::fork();
    if (first == 0) {
      const FolderLock lock(folder.path());
      if (::write(held[1], "x", 1) == 1) ::pause();
      ::_exit(1);
    }
    // The pid that it has out here.
    if (::write(named[1], &first, sizeof(first)) != static_cast<ssize_t>(sizeof(first))) ::_exit(1);
    ::waitpid(first, nullptr, 0);
    ::_exit(0);
  }
  ::close(held[1]);
  ::close(named[1]);
  pid_t first = -1;
  char byte;
  const bool is_held = ::read(named[0], &first, sizeof(first)) == static_cast<ssize_t>(sizeof(first)) &&
                       ::read(held[0], &byte, 1) == 1;
  ::close(held[0]);
  ::close(named[0]);
  if (is_held) {
    expect_error(ErrorKind::usage, {"(pid 1 of another container or machine: "},
                 [&] { FolderLock lock(folder.path()); });
  }
  if (first > 0) ::kill(first, SIGKILL);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  if (!is_held) GTEST_SKIP() << "this user may not make a pid namespace";
  const FolderLock lock(folder.path());
}

TEST(FolderLock, IsGivenBack) {
  const TemporaryFolder folder;
  { const FolderLock lock(folder.path()); }
  const FolderLock again(folder.path());
  expect_error(ErrorKind::usage, {"pid " + std::to_string(::getpid())},
               [&] { FolderLock lock(folder.path()); });
}

TEST(FolderLock, ALockFileOfRubbishNamesNobody) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  test::write_all(folder / "lock", "rubbish");
  expect_error(ErrorKind::usage, {"another process:"}, [&] { FolderLock second(folder.path()); });
}

TEST(FolderLock, OneProcessMayUseAFolderForSeveralStores) {
  const TemporaryFolder folder;
  FolderLocks locks;
  locks.lock(folder / "new/er");
  locks.lock(folder / "new/er");
  locks.lock(folder / "new/../new/er/");
  locks.lock(folder / "other");
  expect_error(ErrorKind::usage, {"in use"}, [&] { FolderLock lock(folder / "other"); });
}

mode_t mode_of(const std::filesystem::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

TEST(PrivateFolder, IsMadeForItsOwnerAlone) {
  const TemporaryFolder folder;
  const mode_t old_mask = ::umask(0);
  make_private_folder(folder / "a/b/");
  create_private_file(folder / "a/b/file");
  const FolderLock lock(folder / "c");
  ::umask(old_mask);
  EXPECT_EQ(mode_of(folder / "a/b"), 0700u);
  EXPECT_EQ(mode_of(folder / "a/b/file"), 0600u);
  EXPECT_EQ(mode_of(folder / "c"), 0700u);
  EXPECT_EQ(mode_of(folder / "c/lock"), 0600u);
  make_private_folder(folder / "a/b");  // it is there, and fit
}

TEST(PrivateFolder, WhatOthersMayEnterIsRefused) {
  const TemporaryFolder folder;
  for (const mode_t mode : {0750, 0701, 0720}) {
    ASSERT_EQ(::chmod(folder.path().c_str(), mode), 0);
    expect_error(ErrorKind::usage, {folder.path().string(), "chmod 700"},
                 [&] { make_private_folder(folder.path()); });
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
  create_private_file(folder / "file");
  ASSERT_EQ(::chmod((folder / "file").c_str(), 0640), 0);
  expect_error(ErrorKind::usage, {"chmod 600"}, [&] { open_private_file(folder / "file"); });
}

TEST(PrivateFolder, LinksAreNotFollowed) {
  const TemporaryFolder folder;
  make_private_folder(folder / "real");
  std::filesystem::create_directory_symlink(folder / "real", folder / "link");
  expect_error(ErrorKind::usage, {"symbolic link"}, [&] { make_private_folder(folder / "link"); });
  expect_error(ErrorKind::usage, {"symbolic link"}, [&] { make_private_folder(folder / "link/"); });
  create_private_file(folder / "file");
  std::filesystem::create_symlink(folder / "file", folder / "lock");
  expect_error(ErrorKind::usage, {"symbolic link"}, [&] { FolderLock lock(folder.path()); });
  expect_error(ErrorKind::usage, {"symbolic link"}, [&] { open_private_file(folder / "lock"); });
}

TEST(PrivateFolder, OnlyPlainFilesAndFolders) {
  const TemporaryFolder folder;
  create_private_file(folder / "file");
  expect_error(ErrorKind::usage, {"not a folder"}, [&] { make_private_folder(folder / "file"); });
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error(ErrorKind::usage, {"not a plain file"}, [&] { open_private_file(folder / "pipe"); });
  expect_error(ErrorKind::data, {"no folder"}, [&] { check_private_folder(folder / "missing"); });
  expect_error(ErrorKind::data, {"missing"}, [&] { open_private_file(folder / "missing"); });
  expect_error(ErrorKind::runtime, {"create"}, [&] { create_private_file(folder / "file"); });
}

TEST(PrivateFolder, AForeignOwnerIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  const TemporaryFolder folder;
  make_private_folder(folder / "theirs");
  ASSERT_EQ(::chown((folder / "theirs").c_str(), 65534, 65534), 0);
  expect_error(ErrorKind::usage, {"user 65534"}, [&] { make_private_folder(folder / "theirs"); });
  create_private_file(folder / "file");
  ASSERT_EQ(::chown((folder / "file").c_str(), 65534, 65534), 0);
  expect_error(ErrorKind::usage, {"user 65534"}, [&] { open_private_file(folder / "file"); });
}

}  // namespace
}  // namespace sluice
