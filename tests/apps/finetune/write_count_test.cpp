#include "apps/finetune/write_count.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <vector>

#include "io/file.h"
#include "io/thread_queue.h"
#include "tests/support/temporary_folder.h"

namespace sluice::finetune {
namespace {

TEST(WriteCounts, CountTheWritesOfAllQueues) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "file";
  const File file = File::adopt(path, ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  WriteCount count;
  const IoQueueOptions options{.capacity = 4, .thread_count = 1};
  const auto counted = [&] {
    std::vector<std::unique_ptr<IoObserver>> observers;
    observers.push_back(count_writes(count));
    return std::make_unique<ObservedQueue>(std::make_unique<ThreadQueue>(options), std::move(observers));
  };
  const auto one = counted(), other = counted();
  std::vector<std::byte> bytes(8192);
  const IoRequest write{.kind = IoRequest::Kind::write,
                        .descriptor = file.descriptor(),
                        .data = bytes.data(),
                        .size_bytes = bytes.size()};
  IoRequest read = write;
  read.kind = IoRequest::Kind::read;
  run_all(*one, std::vector{write});
  run_all(*one, std::vector{read});
  EXPECT_EQ(count.bytes(), 8192u);
  run_all(*other, std::vector{write, write});
  EXPECT_EQ(count.bytes(), 3 * 8192u);
}

}  // namespace
}  // namespace sluice::finetune
