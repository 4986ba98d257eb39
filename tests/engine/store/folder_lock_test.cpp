#include "engine/store/folder_lock.h"

#include <csignal>
#include <fcntl.h>
#include <gtest/gtest.h>
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

TEST(FolderLock, ASecondProcessIsRefusedWithTheHoldersPid) {
  const TemporaryFolder folder;
  Holder holder(folder.path());
  expect_error(ErrorKind::usage, {folder.path().string(), "pid " + std::to_string(holder.pid()) + ")"},
               [&] { FolderLock lock(folder.path()); });
  holder.kill();
  EXPECT_TRUE(std::filesystem::exists(folder / "lock")) << "stale, and no obstacle:";
  const FolderLock lock(folder.path());
  EXPECT_EQ(test::read_all(folder / "lock"), std::to_string(::getpid()) + "\n");
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
