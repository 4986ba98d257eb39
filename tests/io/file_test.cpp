#include "io/file.h"

#include <csignal>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TemporaryFolder;

TEST(File, ReadsAndWritesAtPositions) {
  const TemporaryFolder folder;
  {
    File file = File::create(folder / "a");
    file.write_at("world", 5, 6);
    file.write_at("hello ", 6, 0);
    file.sync();
    EXPECT_EQ(file.size_bytes(), 11U);
  }
  const File file = File::open(folder / "a");
  std::string text(5, ' ');
  file.read_at(text.data(), 5, 3);
  EXPECT_EQ(text, "lo wo");
  file.read_at(text.data(), 0, 99);  // nothing asked for, nothing wrong
}

TEST(File, SaysWhereAFileEndsTooEarly) {
  const TemporaryFolder folder;
  test::write_all(folder / "a", "0123456789");
  const File file = File::open(folder / "a");
  std::string text(20, ' ');
  expect_error(ErrorKind::data, {"/a", "offset 10", "4 bytes short"},
               [&] { file.read_at(text.data(), 8, 6); });
  expect_error(ErrorKind::data, {"offset 11"}, [&] { file.read_at(text.data(), 1, 11); });
}

TEST(File, NamesPathAndReasonOfWhatCannotBeOpened) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::data, {"/none", "No such file"}, [&] { File::open(folder / "none"); });
  expect_error(ErrorKind::data, {"folder"}, [&] { File::open(folder.path()); });
  expect_error(ErrorKind::runtime, {"/no/file", "No such file"}, [&] { File::create(folder / "no/file"); });
}

TEST(File, CallsAFullDiskAResource) {
  File full = File::create("/dev/full");
  expect_error(ErrorKind::resource, {"/dev/full", "offset 42", "No space left", "Free some space"},
               [&] { full.write_at("x", 1, 42); });
}

TEST(File, MovesItsDescriptor) {
  const TemporaryFolder folder;
  test::write_all(folder / "a", "A");
  test::write_all(folder / "b", "B");
  File a = File::open(folder / "a");
  a = File::open(folder / "b");
  char letter = ' ';
  a.read_at(&letter, 1, 0);
  EXPECT_EQ(letter, 'B');
  EXPECT_EQ(a.path().filename(), "b");
}

TEST(PendingFile, AppearsOnlyWhenCommitted) {
  const TemporaryFolder folder;
  test::write_all(folder / "a", "old");
  {
    PendingFile dropped(folder / "a");
    dropped.file().write_at("half", 4, 0);
  }
  EXPECT_EQ(test::read_all(folder / "a"), "old");
  {
    PendingFile pending(folder / "a");
    pending.file().write_at("new", 3, 0);
    EXPECT_EQ(test::read_all(folder / "a"), "old");
    pending.commit();
  }
  EXPECT_EQ(test::read_all(folder / "a"), "new");
  EXPECT_EQ(test::list_all(folder.path()), std::vector<std::string>{"a"});
}

// A limit on file sizes makes a write end early and then fail, as a disk that fills up does.
TEST(PendingFile, LeavesNothingWhenAWriteFails) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorKind::resource, {"/big", "offset 4096"},
               [&] { write_file_atomically(folder / "big", std::string(10000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ReadTextFile, RefusesMoreThanTheLimit) {
  const TemporaryFolder folder;
  test::write_all(folder / "a", "12345");
  EXPECT_EQ(read_text_file(folder / "a", 5), "12345");
  expect_error(ErrorKind::data, {"/a", "5 bytes"}, [&] { read_text_file(folder / "a", 4); });
}

TEST(CopyFileContents, FollowsLinksAndCopiesEveryByte) {
  const TemporaryFolder folder;
  std::string contents((2 << 20) + 17, ' ');  // three pieces
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 7 >> 3);
  test::write_all(folder / "a", contents);
  test::write_all(folder / "empty", "");
  fs::create_symlink("a", folder / "link");
  copy_file_contents(folder / "link", folder / "copy");
  copy_file_contents(folder / "empty", folder / "empty copy");
  EXPECT_FALSE(fs::is_symlink(folder / "copy"));
  EXPECT_EQ(test::read_all(folder / "copy"), contents);
  EXPECT_EQ(fs::file_size(folder / "empty copy"), 0U);
}

TEST(CheckFreeSpace, KnowsWhatIsFreeWhereTheFolderWillBe) {
  const TemporaryFolder folder;
  check_free_space(folder / "not/yet/there", 1);
  expect_error(ErrorKind::resource, {"not/yet/there", "1152921504606846976 bytes"},
               [&] { check_free_space(folder / "not/yet/there", uint64_t{1} << 60); });
}

}  // namespace
}  // namespace sluice
