#include "gpu/host/hazard_checker.h"

#include <array>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

namespace sluice::gpu {
namespace {

// Streams without threads: the checker judges submissions, so nothing has to run.
class HazardCheckerTest : public testing::Test {
 protected:
  Order submit(int stream, const char* name, std::vector<MemoryAccess> accesses) {
    return checker_.on_submit(stream, Task{name, std::move(accesses), [] {}});
  }
  MemoryAccess read(size_t begin, size_t end) { return reads(memory_.data() + begin, end - begin); }
  MemoryAccess write(size_t begin, size_t end) { return writes(memory_.data() + begin, end - begin); }
  size_t count() { return checker_.violation_count(); }

  std::array<std::byte, 4096> memory_ = {};
  HazardChecker checker_;
  int a_ = checker_.add_stream("a");
  int b_ = checker_.add_stream("b");
  int c_ = checker_.add_stream("c");
};

TEST_F(HazardCheckerTest, ReadAfterWrite) {
  submit(a_, "copy_to_device", {write(0, 100)});
  submit(b_, "linear_forward", {read(0, 100)});
  ASSERT_EQ(count(), 1u);
  const Violation violation = checker_.violations()[0];
  EXPECT_EQ(violation.later_name, "linear_forward");
  EXPECT_EQ(violation.later_stream, "b");
  EXPECT_EQ(violation.earlier_name, "copy_to_device");
  EXPECT_EQ(violation.earlier_stream, "a");
  EXPECT_EQ(violation.begin, memory_.data());
  EXPECT_EQ(violation.size_bytes, 100u);
  EXPECT_EQ(violation.text.find("linear_forward on 'b' reads ["), 0u) << violation.text;
  EXPECT_NE(violation.text.find(", +100) written by copy_to_device on 'a' without a wait between"),
            std::string::npos)
      << violation.text;
}

TEST_F(HazardCheckerTest, WriteAfterRead) {
  submit(a_, "add", {read(0, 100)});
  submit(b_, "fill", {write(0, 100)});
  ASSERT_EQ(count(), 1u);
  EXPECT_NE(checker_.violations()[0].text.find("fill on 'b' writes ["), std::string::npos);
  EXPECT_NE(checker_.violations()[0].text.find("read by add on 'a'"), std::string::npos);
}

TEST_F(HazardCheckerTest, WriteAfterWrite) {
  submit(a_, "fill", {write(0, 100)});
  submit(b_, "fill", {write(0, 100)});
  EXPECT_EQ(count(), 1u);
}

TEST_F(HazardCheckerTest, ReadersDoNotConflict) {
  submit(a_, "read", {read(0, 100)});
  submit(b_, "read", {read(0, 100)});
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, OneStreamIsInOrder) {
  submit(a_, "one", {write(0, 100), read(0, 100)});
  submit(a_, "two", {read(50, 150), write(0, 200)});
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, RecordAndWaitOrder) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_wait(b_, checker_.on_record(a_));
  submit(b_, "add", {read(0, 100)});
  checker_.on_wait(a_, checker_.on_record(b_));
  submit(a_, "fill", {write(0, 100)});
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, EventRecordedTooEarlyOrdersNothing) {
  const Order early = checker_.on_record(a_);
  submit(a_, "fill", {write(0, 100)});
  checker_.on_wait(b_, early);
  submit(b_, "add", {read(0, 100)});
  EXPECT_EQ(count(), 1u);
}

TEST_F(HazardCheckerTest, WaitAfterTheUseComesTooLate) {
  submit(a_, "fill", {write(0, 100)});
  const Order filled = checker_.on_record(a_);
  submit(b_, "add", {read(0, 100)});
  checker_.on_wait(b_, filled);
  EXPECT_EQ(count(), 1u);
}

TEST_F(HazardCheckerTest, OrderIsTransitive) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_wait(b_, checker_.on_record(a_));
  submit(b_, "other", {write(200, 300)});
  checker_.on_wait(c_, checker_.on_record(b_));
  submit(c_, "add", {read(0, 100)});
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, ChainsThroughTheSecondReaderAreNeeded) {
  submit(a_, "read", {read(0, 100)});
  submit(b_, "read", {read(0, 100)});
  checker_.on_wait(c_, checker_.on_record(a_));
  submit(c_, "fill", {write(0, 100)});
  ASSERT_EQ(count(), 1u);
  EXPECT_EQ(checker_.violations()[0].earlier_stream, "b");
}

TEST_F(HazardCheckerTest, LaterReadOfTheSameStreamCounts) {
  submit(a_, "read_early", {read(0, 100)});
  checker_.on_wait(b_, checker_.on_record(a_));
  submit(a_, "read_late", {read(0, 100)});
  submit(b_, "fill", {write(0, 100)});
  ASSERT_EQ(count(), 1u);
  EXPECT_EQ(checker_.violations()[0].earlier_name, "read_late");
}

TEST_F(HazardCheckerTest, HostWaitOrdersWhatTheThreadSubmitsNext) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_host_wait(checker_.on_record(a_));
  submit(b_, "add", {read(0, 100)});
  EXPECT_EQ(count(), 0u);
  // Seen by the event that the thread records afterwards, too.
  submit(a_, "fill", {write(200, 300)});
  checker_.on_host_wait(checker_.on_record(a_));
  checker_.on_wait(c_, checker_.on_record(b_));
  std::thread([&] { submit(c_, "add", {read(200, 300)}); }).join();
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, HostWaitOfAnotherThreadDoesNotCount) {
  submit(a_, "fill", {write(0, 100)});
  const Order filled = checker_.on_record(a_);
  std::thread([&] { checker_.on_host_wait(filled); }).join();
  submit(b_, "add", {read(0, 100)});
  EXPECT_EQ(count(), 1u);
}

TEST_F(HazardCheckerTest, SharedHostOrderLetsItCount) {
  HazardChecker shared(OnViolation::collect, HostOrder::shared);
  const int a = shared.add_stream("a"), b = shared.add_stream("b");
  shared.on_submit(a, Task{"fill", {write(0, 100)}, [] {}});
  const Order filled = shared.on_record(a);
  std::thread([&] { shared.on_host_wait(filled); }).join();
  shared.on_submit(b, Task{"add", {read(0, 100)}, [] {}});
  EXPECT_EQ(shared.violation_count(), 0u);
}

TEST_F(HazardCheckerTest, TaskThatSubmitsIsOrderedByItsOwnPlace) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_wait(b_, checker_.on_record(a_));
  const Order task = submit(b_, "submitter", {write(200, 300)});
  std::thread([&] {
    checker_.on_task_begin(task);
    submit(c_, "add", {read(0, 100), read(200, 300)});
  }).join();
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, DestroyingAStreamIsAHostWait) {
  submit(a_, "fill", {write(0, 100)});
  checker_.remove_stream(a_);
  submit(b_, "add", {read(0, 100)});
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, UnknownEventOrdersNothing) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_wait(b_, nullptr);
  submit(b_, "add", {read(0, 100)});
  EXPECT_EQ(count(), 1u);
}

TEST_F(HazardCheckerTest, PartialOverlaps) {
  submit(a_, "fill", {write(100, 200)});
  submit(b_, "below", {read(0, 100)});
  submit(b_, "above", {read(200, 300)});
  EXPECT_EQ(count(), 0u) << "side by side is no overlap";
  submit(b_, "first_byte", {read(0, 101)});
  submit(b_, "last_byte", {read(199, 300)});
  submit(b_, "inside", {read(120, 130)});
  submit(b_, "around", {read(0, 400)});
  ASSERT_EQ(count(), 4u);
  const std::vector<Violation> violations = checker_.violations();
  EXPECT_EQ(violations[0].begin, memory_.data() + 100);
  EXPECT_EQ(violations[0].size_bytes, 1u);
  EXPECT_EQ(violations[1].begin, memory_.data() + 199);
  EXPECT_EQ(violations[1].size_bytes, 1u);
  EXPECT_EQ(violations[2].begin, memory_.data() + 120);
  EXPECT_EQ(violations[2].size_bytes, 10u);
  EXPECT_EQ(violations[3].begin, memory_.data() + 100) << "ranges side by side are one report";
  EXPECT_EQ(violations[3].size_bytes, 100u);
}

TEST_F(HazardCheckerTest, WriteIntoTheMiddleKeepsTheRest) {
  submit(a_, "fill", {write(0, 300)});
  checker_.on_wait(b_, checker_.on_record(a_));
  submit(b_, "middle", {write(100, 200)});
  checker_.on_wait(c_, checker_.on_record(a_));
  submit(c_, "left", {read(0, 100)});
  submit(c_, "right", {read(200, 300)});
  EXPECT_EQ(count(), 0u);
  submit(c_, "middle", {read(100, 200)});
  EXPECT_EQ(count(), 1u);
}

TEST_F(HazardCheckerTest, FreedMemoryForgetsItsHistory) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_host_wait(checker_.on_record(a_));
  checker_.on_free(memory_.data(), 100);
  checker_.on_allocate(memory_.data(), 100);
  std::thread([&] { submit(b_, "fill", {write(0, 100)}); }).join();  // that thread has waited for nothing
  EXPECT_EQ(count(), 0u);
}

TEST_F(HazardCheckerTest, FreeingMemoryInUseIsFound) {
  submit(a_, "fill", {write(0, 100)});
  checker_.on_free(memory_.data(), 100);
  ASSERT_EQ(count(), 1u);
  EXPECT_EQ(checker_.violations()[0].later_name, "free");
  EXPECT_EQ(checker_.violations()[0].later_stream, "host");
}

TEST_F(HazardCheckerTest, KeepsTheFirstThousandAndCountsAll) {
  submit(a_, "fill", {write(0, 100)});
  for (int i = 0; i < 1500; ++i) submit(b_, "read", {read(0, 100)});
  EXPECT_EQ(count(), 1500u);
  EXPECT_EQ(checker_.violations().size(), 1000u);
}

TEST_F(HazardCheckerTest, HistoryStaysSmallOverManyTasks) {
  for (int i = 0; i < 100'000; ++i) {
    const size_t begin = static_cast<size_t>(i * 37 % 64) * 64;
    checker_.on_wait(b_, checker_.on_record(a_));
    submit(b_, "use", {read(begin, begin + 64), write((begin + 128) % 4096, (begin + 128) % 4096 + 32)});
    checker_.on_wait(a_, checker_.on_record(b_));
    submit(a_, "whole", {write(begin, begin + 64)});
  }
  EXPECT_EQ(count(), 0u);
  EXPECT_LE(checker_.range_count(), 128u);
  submit(a_, "all", {write(0, 4096)});
  EXPECT_EQ(checker_.range_count(), 1u);
}

using HazardCheckerDeathTest = HazardCheckerTest;

TEST_F(HazardCheckerDeathTest, AbortsOnDemand) {
  HazardChecker strict(OnViolation::abort);
  const int a = strict.add_stream("a"), b = strict.add_stream("b");
  strict.on_submit(a, Task{"fill", {write(0, 100)}, [] {}});
  EXPECT_DEATH(strict.on_submit(b, Task{"add", {read(0, 100)}, [] {}}),
               "add on 'b' reads .* written by fill");
}

}  // namespace
}  // namespace sluice::gpu
