#include "apps/finetune/output_folder.h"

#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;

void expect_refused(const fs::path& output, const std::vector<std::string>& texts) {
  test::expect_error(ErrorKind::usage, texts, [&] { check_output_folder(output); });
}

TEST(OutputFolderTest, AbsentOrEmptyIsFineAndStaysAsItIs) {
  const test::TemporaryFolder folder;
  check_output_folder(folder.path());
  check_output_folder(folder / "deep/er");
  EXPECT_TRUE(test::list_all(folder.path()).empty());
  make_output_folder(folder / "deep/er");
  EXPECT_TRUE(fs::is_directory(folder / "deep/er"));
}

TEST(OutputFolderTest, AnUnfinishedRunOfOursMayBeWrittenOver) {
  const test::TemporaryFolder folder;
  test::write_all(folder / "events.jsonl",
                  "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"st");
  fs::create_directories(folder / ".partial-123/half");
  check_output_folder(folder.path());
  make_output_folder(folder.path());
  EXPECT_EQ(test::list_all(folder.path()), std::vector<std::string>{"events.jsonl"});
}

TEST(OutputFolderTest, ForeignAndFinishedContentsAreRefused) {
  const test::TemporaryFolder folder;
  const fs::path events = folder / "events.jsonl";
  test::write_all(events, "{\"event\":\"start\"}\n{\"event\":\"end\"}\n");
  expect_refused(folder.path(), {folder.path(), "finished run"});
  for (const char* name : {"config.json", "model.safetensors", "zebra"}) {
    test::write_all(folder / name, "");  // whatever a listing of the folder names first
    expect_refused(folder.path(), {folder.path(), "finished run"});
    fs::remove(folder / name);
  }
  test::write_all(events, "{\"time\":1}\n");
  expect_refused(folder.path(), {"events.jsonl"});
  fs::remove(events);
  test::write_all(folder / ".hidden", "");
  expect_refused(folder.path(), {".hidden", "Choose another"});
  expect_refused(folder / ".hidden", {"is not a folder"});
  expect_refused(folder / ".hidden/below", {"is not a folder"});
}

TEST(OutputFolderTest, AFolderThatCannotBeWrittenIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const test::TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused(folder / "out", {folder.path(), "Permission denied"});
  fs::permissions(folder.path(), fs::perms::owner_all);
}

}  // namespace
}  // namespace sluice::finetune
