#include "io/transfer.h"

#include <cerrno>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using Kind = IoRequest::Kind;
using Next = Transfer::Next;

alignas(kIoAlignment) std::byte memory[5 * kIoAlignment];

Transfer transfer(Kind kind, size_t size_bytes, uint64_t offset = 0) {
  return Transfer(
      {.kind = kind, .descriptor = 3, .data = memory, .size_bytes = size_bytes, .offset = offset, .tag = 7});
}

int error_after(Transfer transfer, std::initializer_list<int64_t> results) {
  for (const int64_t result : results)
    if (transfer.take(result) == Next::done) return transfer.completion().error_number;
  return -1;
}

TEST(Transfer, EndsWithAllBytesOrAnErrno) {
  EXPECT_EQ(error_after(transfer(Kind::read, 100), {100}), 0);
  EXPECT_EQ(error_after(transfer(Kind::read, 100), {0}), ENODATA);
  EXPECT_EQ(error_after(transfer(Kind::write, 100), {0}), EIO);
  EXPECT_EQ(error_after(transfer(Kind::write, 100), {-ENOSPC}), ENOSPC);
  EXPECT_EQ(error_after(transfer(Kind::write, 100), {-EIO}), EIO);
  EXPECT_EQ(error_after(transfer(Kind::write, 100), {60, -ENOSPC}), ENOSPC);
  EXPECT_EQ(transfer(Kind::read, 1).completion().tag, 7U);
}

TEST(Transfer, GoesOnWhereItStopped) {
  Transfer odd = transfer(Kind::read, 100, 10);
  EXPECT_EQ(odd.take(30), Next::at_once);
  EXPECT_EQ(odd.data(), memory + 30);
  EXPECT_EQ(odd.size_bytes(), 70U);
  EXPECT_EQ(odd.offset(), 40U);
  EXPECT_EQ(odd.take(70), Next::done);
}

TEST(Transfer, GoesOnAtAMultipleOfTheAlignment) {
  Transfer aligned = transfer(Kind::write, 4 * kIoAlignment, kIoAlignment);
  EXPECT_EQ(aligned.take(2 * kIoAlignment - 512), Next::at_once);
  EXPECT_EQ(aligned.data(), memory + kIoAlignment);
  EXPECT_EQ(aligned.size_bytes(), 3 * kIoAlignment);
  EXPECT_EQ(aligned.offset(), 2 * kIoAlignment);
  // Nothing gained by this: neither is it given up at once, nor tried for ever.
  int tries = 0;
  while (aligned.take(512) == Next::at_once) ++tries;
  EXPECT_EQ(aligned.completion().error_number, EIO);
  EXPECT_GT(tries, 3);
  EXPECT_LT(tries, 100);
}

TEST(Transfer, RetriesABoundedNumberOfTimesWithLongerPauses) {
  for (const int error_number : {EAGAIN, EBUSY}) {
    Transfer busy = transfer(Kind::read, 100);
    std::chrono::microseconds sum{0}, last{0};
    while (busy.take(-error_number) == Next::after_pause) {
      EXPECT_GE(busy.pause(), last);
      sum += last = busy.pause();
    }
    EXPECT_EQ(busy.completion().error_number, error_number);
    EXPECT_GT(sum, std::chrono::seconds(1));
    EXPECT_LT(sum, std::chrono::seconds(3));
  }
  Transfer interrupted = transfer(Kind::read, 100);
  EXPECT_EQ(interrupted.take(-EINTR), Next::at_once);
}

TEST(Transfer, CountsRetriesAnewAfterProgress) {
  Transfer slow = transfer(Kind::read, 100);
  for (int i = 0; i < 99; ++i) {
    for (int j = 0; j < 10; ++j) ASSERT_EQ(slow.take(-EAGAIN), Next::after_pause);
    ASSERT_EQ(slow.take(1), Next::at_once);
  }
  EXPECT_EQ(slow.take(1), Next::done);
  EXPECT_EQ(slow.completion().error_number, 0);
}

}  // namespace
}  // namespace sluice
