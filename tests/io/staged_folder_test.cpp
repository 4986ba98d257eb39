#include "io/staged_folder.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

TEST(StagedFolder, ShowsFilesOnlyWhenPublished) {
  const TemporaryFolder folder;
  {
    StagedFolder staged(folder / "a/b/");
    test::write_all(staged.path_of("one"), "1");
    test::write_all(staged.path_of("two"), "2");
    EXPECT_FALSE(fs::exists(folder / "a/b/one"));
    staged.publish({"two", "one"});
  }
  EXPECT_EQ(test::list_all(folder / "a/b"), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(test::read_all(folder / "a/b/two"), "2");
}

TEST(StagedFolder, RemovesTheFoldersItMade) {
  const TemporaryFolder folder;
  {
    StagedFolder staged(folder / "a/b");
    test::write_all(staged.path_of("one"), "1");
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(StagedFolder, KeepsWhatWasThereBefore) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "a");
  test::write_all(folder / "a/events.jsonl", "{}");
  { StagedFolder staged(folder / "a"); }
  EXPECT_EQ(test::list_all(folder / "a"), std::vector<std::string>{"events.jsonl"});
  {
    StagedFolder staged(folder / "a");
    test::write_all(staged.path_of("one"), "1");
    staged.publish({"one"});
  }
  EXPECT_EQ(test::list_all(folder / "a"), (std::vector<std::string>{"events.jsonl", "one"}));
}

TEST(StagedFolder, KeepsWhatOthersPutIntoAFolderItMade) {
  const TemporaryFolder folder;
  {
    StagedFolder staged(folder / "a");
    test::write_all(folder / "a/other", "1");
  }
  EXPECT_EQ(test::list_all(folder / "a"), std::vector<std::string>{"other"});
}

TEST(StagedFolder, NamesAFolderThatCannotBeMade) {
  const TemporaryFolder folder;
  test::write_all(folder / "file", "");
  test::expect_error(ErrorKind::runtime, {"file/a", "Not a directory"},
                     [&] { StagedFolder(folder / "file/a"); });
  test::expect_error(ErrorKind::runtime, {"/proc"}, [&] { StagedFolder("/proc"); });
}

TEST(StagedFolder, NamesAFileThatIsMissing) {
  const TemporaryFolder folder;
  StagedFolder staged(folder / "a");
  test::expect_error(ErrorKind::runtime, {"a/none", "No such file"}, [&] { staged.publish({"none"}); });
}

}  // namespace
}  // namespace sluice
