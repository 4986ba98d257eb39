#include "io/uring_queue.h"

#include <linux/capability.h>
#include <sys/syscall.h>

#include "tests/contract/io_queue_contract.h"

namespace sluice {
namespace {

const auto kMake = [](const IoQueueOptions& options) { return make_uring_queue(options); };

INSTANTIATE_TEST_SUITE_P(Uring, IoQueueContract,
                         testing::Values(QueueCase{"io_uring", kMake, uring_unavailable_reason}),
                         queue_case_name);
INSTANTIATE_TEST_SUITE_P(Uring, IoQueueContractDeathTest,
                         testing::Values(QueueCase{"io_uring", kMake, uring_unavailable_reason}),
                         queue_case_name);

class UringQueueTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = uring_unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  // Writes the buffer to a file and reads it back.
  static void expect_to_work(IoQueue& queue, const AlignedBuffer& buffer) {
    const test::TemporaryFolder folder;
    const File file = File::create(folder / "file");
    fill_randomly(buffer.bytes(), 1);
    const std::vector<std::byte> sent(buffer.bytes().begin(), buffer.bytes().end());
    IoRequest request{IoRequest::Kind::write, file.descriptor(), buffer.data(), buffer.size_bytes()};
    run_all(queue, {&request, 1});
    std::fill_n(buffer.data(), buffer.size_bytes(), std::byte{0});
    request.kind = IoRequest::Kind::read;
    run_all(queue, {&request, 1});
    EXPECT_TRUE(equal_bytes(sent.data(), buffer.data(), sent.size()));
  }
};

// Of this thread alone.
void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  ASSERT_EQ(::syscall(SYS_capset, &header, none), 0);
}

TEST_F(UringQueueTest, SaysThatBuffersAreNotRegistered) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small{size_t{1} << 20, before.rlim_max};
  if (before.rlim_max < small.rlim_cur) GTEST_SKIP() << "so little memory may be locked here";
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  std::string note;
  std::thread([&] {
    drop_capabilities();
    const AlignedBuffer buffer(size_t{4} << 20, "a test");
    const auto queue = make_uring_queue({.buffers = {buffer.bytes()}}, &note);
    expect_to_work(*queue, buffer);
  }).join();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_THAT(
      note, testing::AllOf(testing::HasSubstr("4 MiB of buffers (ENOMEM)"), testing::HasSubstr("ulimit -l")));
}

TEST_F(UringQueueTest, SaysThatFilesAreNotRegistered) {
  std::string note;
  const auto queue = make_uring_queue({.descriptors = {1'000'000}}, &note);
  EXPECT_THAT(note, testing::HasSubstr("1 files (EBADF)"));
  expect_to_work(*queue, AlignedBuffer(5000, "a test"));
}

TEST_F(UringQueueTest, SaysNothingWhereAllIsWell) {
  std::string note;
  const AlignedBuffer buffer(100'000, "a test");
  expect_to_work(*make_uring_queue({.buffers = {buffer.bytes()}}, &note), buffer);
  EXPECT_EQ(note, "");
}

}  // namespace
}  // namespace sluice
