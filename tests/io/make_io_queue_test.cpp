#include "io/make_io_queue.h"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>

#include "io/file.h"
#include "io/uring_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Engine = IoChoice::Engine;

void expect_to_work(IoQueue& queue) {
  const test::TemporaryFolder folder;
  const File file = File::create(folder / "file");
  char text[] = "abc";
  auto* data = reinterpret_cast<std::byte*>(text);
  IoRequest request{IoRequest::Kind::write, file.descriptor(), data, 3};
  run_all(queue, {&request, 1});
  text[0] = text[1] = text[2] = ' ';
  request.kind = IoRequest::Kind::read;
  run_all(queue, {&request, 1});
  EXPECT_STREQ(text, "abc");
}

// Lets this thread, and no other, fail in io_uring_setup or io_uring_enter: as containers do by default.
void forbid(long system_call, int error_number) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(system_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0) << "no seccomp here";
}

TEST(MakeIoQueue, TakesIoUringWhereItWorks) {
  const std::string reason = uring_unavailable_reason();
  if (!reason.empty()) GTEST_SKIP() << reason;
  std::string note;
  for (const Engine engine : {Engine::automatic, Engine::io_uring}) {
    const auto queue = make_io_queue({.engine = engine}, &note);
    EXPECT_EQ(queue->name(), "io_uring");
    expect_to_work(*queue);
  }
  EXPECT_EQ(note, "");
}

TEST(MakeIoQueue, TakesThreadsWhereTold) {
  std::string note;
  const auto queue = make_io_queue({.engine = Engine::threads, .queue = {.capacity = 9}}, &note);
  EXPECT_EQ(queue->name(), "threads");
  EXPECT_EQ(queue->capacity(), 9);
  expect_to_work(*queue);
  EXPECT_EQ(note, "");
}

TEST(MakeIoQueue, FallsBackToThreadsAloud) {
  std::thread([] {
    forbid(SYS_io_uring_setup, EPERM);
    std::string note;
    const auto queue = make_io_queue({.queue = {.thread_count = 3}}, &note);
    EXPECT_EQ(queue->name(), "threads");
    expect_to_work(*queue);
    EXPECT_THAT(note, testing::MatchesRegex("io_uring .*: using 3 threads."));
    expect_to_work(*make_io_queue({}, nullptr));
    test::expect_error(ErrorKind::resource, {"io_uring", "Choose threads"},
                       [] { make_io_queue({.engine = Engine::io_uring}, nullptr); });
  }).join();
}

TEST(MakeIoQueue, NamesTheReason) {
  if (!uring_unavailable_reason().empty()) GTEST_SKIP() << uring_unavailable_reason();
  const auto reason_without = [](long system_call, int error_number) {
    std::string reason;
    std::thread([&] {
      forbid(system_call, error_number);
      reason = uring_unavailable_reason();
    }).join();
    return reason;
  };
  EXPECT_EQ(reason_without(SYS_io_uring_setup, EPERM), "io_uring is not permitted here (EPERM)");
  EXPECT_EQ(reason_without(SYS_io_uring_setup, ENOSYS), "this kernel has no io_uring (ENOSYS)");
  EXPECT_EQ(reason_without(SYS_io_uring_setup, ENOMEM), "io_uring does not work here (ENOMEM)");
  // A ring can be made, and then does nothing.
  EXPECT_EQ(reason_without(SYS_io_uring_enter, EPERM), "io_uring is not permitted here (EPERM)");
  EXPECT_EQ(reason_without(SYS_io_uring_register, EINVAL), "io_uring does not work here (EINVAL)");
}

}  // namespace
}  // namespace sluice
