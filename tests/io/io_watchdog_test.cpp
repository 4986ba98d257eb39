#include "io/io_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "io/aligned_buffer.h"
#include "io/file.h"
#include "io/memory_queue.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What it is given last stays with the kernel until it is let go: until then no look brings it, and whoever
// waits for it would wait for good.
class HangingQueue final : public IoQueue {
 public:
  explicit HangingQueue(std::unique_ptr<IoQueue> inner, uint64_t hanging_offset)
      : inner_(std::move(inner)), hanging_offset_(hanging_offset) {}
  std::string_view name() const override { return "hanging"; }
  int capacity() const override { return inner_->capacity(); }
  int in_flight() const override { return inner_->in_flight() + static_cast<int>(held_.size()); }
  void start(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      if (request.offset == hanging_offset_) {
        held_.push_back(request);
      } else {
        inner_->start({&request, 1});
      }
    }
  }
  std::span<const IoCompletion> wait(int least) override {
    SLUICE_CHECK(least <= inner_->in_flight(), "would block for good");
    return inner_->wait(least);
  }
  void let_go() {
    inner_->start(held_);
    held_.clear();
  }

 private:
  const std::unique_ptr<IoQueue> inner_;
  const uint64_t hanging_offset_;
  std::vector<IoRequest> held_;
};

class IoWatchdogTest : public testing::Test {
 protected:
  IoWatchdogTest() : file_(File::create(folder_ / "slab")), buffer_(size_t{2} * 4096, "a test") {
    file_.write_at(buffer_.data(), 2 * 4096, 0);
    auto hanging =
        std::make_unique<HangingQueue>(std::make_unique<MemoryQueue>(std::make_shared<MemoryDisk>()), 4096);
    hanging_ = hanging.get();
    std::vector<std::unique_ptr<IoObserver>> observers;
    observers.push_back(watchdog_.watch(hanging->capacity()));
    queue_ = std::make_unique<ObservedQueue>(std::move(hanging), std::move(observers));
  }
  IoWatchdog::Listener listener() {
    return {.late = [this](const LateTransfer& transfer) { late_.push_back(transfer); },
            .returned = [this](const LateTransfer& transfer) { returned_.push_back(transfer); },
            .given_up = [this](const LateTransfer& transfer) { given_up_.push_back(transfer); }};
  }
  void start(uint64_t offset) {
    const IoRequest request{.kind = IoRequest::Kind::write,
                            .descriptor = file_.descriptor(),
                            .data = buffer_.data() + offset,
                            .size_bytes = 4096,
                            .offset = offset,
                            .tag = offset};
    queue_->start({&request, 1});
  }
  void pass(double seconds) {
    now_ns_ += static_cast<int64_t>(seconds * 1e9);
    watchdog_.check();
  }

  const test::TemporaryFolder folder_;
  std::atomic<int64_t> now_ns_ = 1;
  std::vector<LateTransfer> late_, returned_, given_up_;
  IoWatchdog watchdog_{100, listener(), [this] { return now_ns_.load(); }};
  File file_{File::open("/dev/null")};
  AlignedBuffer buffer_;
  HangingQueue* hanging_ = nullptr;
  std::unique_ptr<ObservedQueue> queue_;
};

TEST_F(IoWatchdogTest, NamesATransferThatDoesNotReturnOnce) {
  this_thread_label() = {"write states of", "layer 7", 12};
  start(0);
  start(4096);
  this_thread_label() = {};
  EXPECT_EQ(queue_->wait(1).front().tag, 0u);
  pass(99);
  EXPECT_THAT(late_, IsEmpty());
  pass(2);
  pass(50);
  ASSERT_EQ(late_.size(), 1u);
  const LateTransfer& late = late_[0];
  EXPECT_EQ(late.kind, IoRequest::Kind::write);
  EXPECT_EQ(late.path, (folder_ / "slab").string());
  EXPECT_EQ(late.offset, 4096u);
  EXPECT_EQ(late.size_bytes, 4096u);
  EXPECT_EQ(late.work, "write states of layer 7");
  EXPECT_EQ(late.step, 12);
  EXPECT_NEAR(late.seconds, 101, 1e-6);
  EXPECT_EQ(late.text(), "the write of 4096 bytes of " + (folder_ / "slab").string() +
                             " at offset 4096 (write states of layer 7, step 12) has not returned for 101 s");
  EXPECT_THAT(given_up_, IsEmpty());
  hanging_->let_go();
}

// No completion is handed out for it, so nobody may use its memory; others go on.
TEST_F(IoWatchdogTest, GivesUpAfterFourTimesAsLongAndKeepsTheBufferInUse) {
  start(4096);
  pass(399);
  EXPECT_EQ(late_.size(), 1u);
  EXPECT_THAT(given_up_, IsEmpty());
  pass(1);
  pass(1000);
  ASSERT_EQ(given_up_.size(), 1u);
  EXPECT_EQ(given_up_[0].offset, 4096u);
  EXPECT_EQ(queue_->in_flight(), 1);
  EXPECT_THAT(queue_->wait(0), IsEmpty());
  start(0);
  EXPECT_EQ(queue_->wait(1).front().tag, 0u);
  EXPECT_EQ(queue_->in_flight(), 1);
  hanging_->let_go();
}

TEST_F(IoWatchdogTest, TellsOfOneThatCameBackAfterAll) {
  start(4096);
  pass(150);
  hanging_->let_go();
  now_ns_ += int64_t{10'000'000'000};
  EXPECT_EQ(queue_->wait(1).front().tag, 4096u);
  EXPECT_THAT(returned_, IsEmpty());
  pass(300);
  ASSERT_EQ(returned_.size(), 1u);
  EXPECT_NEAR(returned_[0].seconds, 160, 1e-6);
  EXPECT_THAT(given_up_, IsEmpty());
}

TEST_F(IoWatchdogTest, ManyThatReturnAreNeverLate) {
  for (int i = 0; i < 300; ++i) {
    start(0);
    pass(90);
    EXPECT_EQ(queue_->wait(1).size(), 1u);
  }
  EXPECT_THAT(late_, IsEmpty());
  EXPECT_THAT(returned_, IsEmpty());
}

TEST_F(IoWatchdogTest, ForgetsQueuesThatAreGone) {
  start(0);
  queue_.reset();
  pass(1000);
  EXPECT_THAT(late_, IsEmpty());
}

// With a clock that stands far in the future the first look finds it.
TEST(IoWatchdogThread, LooksByItself) {
  const test::TemporaryFolder folder;
  const File file = File::create(folder / "slab");
  std::atomic<int64_t> now_ns = 0;
  Mutex mutex;
  std::condition_variable_any came;
  bool late = false;
  IoWatchdog watchdog(1e-2,
                      {.late =
                           [&](const LateTransfer&) {
                             MutexLock lock(mutex);
                             late = true;
                             came.notify_all();
                           },
                       .returned = {},
                       .given_up = {}},
                      [&] { return now_ns.load(); });
  const std::unique_ptr<IoObserver> observer = watchdog.watch(1);
  observer->on_start(0, {.descriptor = file.descriptor(), .size_bytes = 1});
  now_ns = 20'000'000;
  const IoWatchdogThread thread(watchdog);
  MutexLock lock(mutex);
  while (!late) came.wait(lock);
}

}  // namespace
}  // namespace sluice
