#include "io/memory_queue.h"

#include <bit>
#include <numeric>
#include <sys/mman.h>

#include "engine/base/math.h"
#include "tests/contract/io_queue_contract.h"

namespace sluice {
namespace {

using Kind = IoRequest::Kind;
using Fault = IoFault::Kind;

// One disk for all queues of a case: a second queue finds what the first wrote.
std::function<std::unique_ptr<IoQueue>(const IoQueueOptions&)> maker(std::vector<IoFault> faults) {
  return [faults, disk = std::make_shared<MemoryDisk>()](const IoQueueOptions& options) {
    return std::make_unique<MemoryQueue>(
        disk, MemoryQueue::Options{.capacity = options.capacity, .seed = 1, .faults = faults});
  };
}

// Faults that the contract hides.
std::vector<IoFault> mild_faults() {
  return {{.kind = Fault::short_transfer, .rate = 0.3},
          {.kind = Fault::error, .error_number = EAGAIN, .rate = 0.1},
          {.kind = Fault::error, .error_number = EINTR, .rate = 0.1},
          {.kind = Fault::delay, .delay_seconds = 0.001, .rate = 0.2}};
}

const auto kElsewhere = QueueCase::Contents::elsewhere;
INSTANTIATE_TEST_SUITE_P(Memory, IoQueueContract,
                         testing::Values(QueueCase{"calm", maker({}), {[] { return ""; }}, kElsewhere},
                                         QueueCase{
                                             "rough", maker(mild_faults()), {[] { return ""; }}, kElsewhere}),
                         queue_case_name);
INSTANTIATE_TEST_SUITE_P(Memory, IoQueueContractDeathTest,
                         testing::Values(QueueCase{"calm", maker({}), {[] { return ""; }}, kElsewhere}),
                         queue_case_name);

constexpr size_t kSize = 16 * 4096;

class MemoryQueueTest : public testing::Test {
 protected:
  MemoryQueueTest() { fill_randomly(sent_.bytes(), 1); }

  IoRequest write() { return {Kind::write, file_.descriptor(), sent_.data(), kSize}; }
  IoRequest read() { return {Kind::read, file_.descriptor(), got_.data(), kSize}; }

  static int run(IoQueue& queue, const IoRequest& request) {
    queue.start({&request, 1});
    return queue.wait(1)[0].error_number;
  }

  // What is in the file, read without faults.
  std::vector<std::byte> contents() {
    std::vector<std::byte> bytes(kSize);
    EXPECT_EQ(disk_->read(file_.descriptor(), bytes.data(), kSize, 0), static_cast<int64_t>(kSize));
    return bytes;
  }
  // How many of the first bytes of the file are those of `sent_`; the others must be zero.
  size_t written_bytes() {
    const std::vector<std::byte> bytes = contents();
    size_t count = kSize;
    while (count > 0 && bytes[count - 1] == std::byte{0}) --count;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count), sent_.data()));
    return round_up(count, size_t{512});
  }

  const test::TemporaryFolder folder_;
  const File file_ = [this] {
    File file = File::create(folder_ / "file");
    EXPECT_EQ(::ftruncate(file.descriptor(), kSize), 0);
    return file;
  }();
  const AlignedBuffer sent_{kSize, "a test"}, got_{kSize, "a test"};
  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

TEST_F(MemoryQueueTest, FailsAsTold) {
  MemoryQueue queue(
      disk_, {.faults = {{.error_number = EIO, .times = 1, .only = Kind::write},
                         {.error_number = ENOSPC, .request = 2},
                         {.error_number = EROFS, .only = Kind::read, .begin = 5 * 4096, .end = 6 * 4096}}});
  EXPECT_EQ(run(queue, write()), EIO);
  EXPECT_EQ(contents(), std::vector<std::byte>(kSize));
  EXPECT_EQ(run(queue, write()), 0);
  EXPECT_EQ(run(queue, write()), ENOSPC);
  IoRequest request = read();
  EXPECT_EQ(run(queue, request), EROFS);
  request.size_bytes = 5 * 4096;
  EXPECT_EQ(run(queue, request), 0);
  request.offset = 6 * 4096;
  EXPECT_EQ(run(queue, request), 0);
  request.offset = 6 * 4096 - 1;
  EXPECT_EQ(run(queue, request), EROFS);
  EXPECT_EQ(queue.fault_count(Fault::error), 4);
}

TEST_F(MemoryQueueTest, FailsAtTheRateTold) {
  MemoryQueue queue(disk_, {.faults = {{.rate = 0.25}}});
  int failures = 0;
  for (int i = 0; i < 1000; ++i) failures += run(queue, write()) == EIO ? 1 : 0;
  EXPECT_EQ(failures, queue.fault_count(Fault::error));
  // 250, give or take five times sqrt(1000 x 0.25 x 0.75).
  EXPECT_NEAR(failures, 250, 5 * 13.7);
}

TEST_F(MemoryQueueTest, ContinuesShortTransfersAndRetriesBusyOnes) {
  MemoryQueue queue(disk_, {.faults = {{.kind = Fault::short_transfer, .rate = 0.9},
                                       {.error_number = EAGAIN, .times = 10},
                                       {.error_number = EINTR, .times = 5},
                                       {.error_number = EBUSY, .times = 3}}});
  EXPECT_EQ(run(queue, write()), 0);
  EXPECT_EQ(run(queue, read()), 0);
  EXPECT_TRUE(std::equal(got_.data(), got_.data() + kSize, sent_.data()));
  EXPECT_EQ(queue.fault_count(Fault::error), 18);
  EXPECT_GT(queue.fault_count(Fault::short_transfer), 3);
}

TEST_F(MemoryQueueTest, GivesUpOnABusyDisk) {
  MemoryQueue queue(disk_, {.faults = {{.error_number = EBUSY}}});
  EXPECT_EQ(run(queue, write()), EBUSY);
  EXPECT_EQ(queue.fault_count(Fault::error), 21);
}

TEST_F(MemoryQueueTest, TearsWrites) {
  std::set<size_t> lengths;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const uint64_t before = disk_->used_bytes();
    MemoryQueue queue(disk_, {.seed = seed, .faults = {{.kind = Fault::torn_write, .times = 1}}});
    EXPECT_EQ(run(queue, write()), EIO);
    EXPECT_EQ(queue.fault_count(Fault::torn_write), 1);
    lengths.insert(written_bytes());
    const std::vector<std::byte> zeros(kSize);
    ASSERT_EQ(disk_->write(file_.descriptor(), zeros.data(), kSize, 0), static_cast<int64_t>(kSize));
    EXPECT_GE(disk_->used_bytes(), before);
  }
  EXPECT_GT(lengths.size(), 10U);
  for (const size_t length : lengths) EXPECT_EQ(length % 512, 0U);
}

TEST_F(MemoryQueueTest, FlipsOneBitOfARead) {
  MemoryQueue queue(disk_, {.faults = {{.kind = Fault::bit_flip, .request = 1}}});
  EXPECT_EQ(run(queue, write()), 0);
  EXPECT_EQ(run(queue, read()), 0);
  int wrong_bits = 0;
  for (size_t i = 0; i < kSize; ++i)
    wrong_bits += std::popcount(std::to_integer<uint8_t>(got_.data()[i] ^ sent_.data()[i]));
  EXPECT_EQ(wrong_bits, 1);
  EXPECT_EQ(run(queue, read()), 0);
  EXPECT_TRUE(std::equal(got_.data(), got_.data() + kSize, sent_.data()));
}

TEST_F(MemoryQueueTest, IsFullAtItsCapacity) {
  const auto small = std::make_shared<MemoryDisk>(3 * (64 << 10));
  MemoryQueue queue(small);
  std::vector<std::byte> memory(5 * (64 << 10));
  EXPECT_EQ(run(queue, {Kind::write, file_.descriptor(), memory.data(), memory.size()}), ENOSPC);
  EXPECT_EQ(small->used_bytes(), 3U * (64 << 10));
  EXPECT_EQ(run(queue, {Kind::write, file_.descriptor(), memory.data(), memory.size() / 2}), 0);
}

class OrderTest : public MemoryQueueTest {
 protected:
  std::vector<uint64_t> order(const MemoryQueue::Options& options) {
    MemoryQueue queue(disk_, options);
    std::vector<IoRequest> requests;
    for (uint64_t i = 0; i < 20; ++i)
      requests.push_back({Kind::read, file_.descriptor(), got_.data() + i * 512, 512, i * 512, i});
    queue.start(requests);
    std::vector<uint64_t> tags;
    while (queue.in_flight() > 0)
      for (const IoCompletion& completion : queue.wait(1)) tags.push_back(completion.tag);
    return tags;
  }
};

TEST_F(OrderTest, ComesFromTheSeed) {
  std::vector<uint64_t> sorted(20);
  std::iota(sorted.begin(), sorted.end(), uint64_t{0});
  EXPECT_NE(order({.seed = 1}), sorted);
  EXPECT_EQ(order({.seed = 1}), order({.seed = 1}));
  EXPECT_NE(order({.seed = 1}), order({.seed = 2}));
  EXPECT_EQ(order({.order = MemoryQueue::Options::Order::as_started}), sorted);
}

TEST_F(OrderTest, IsChangedByDelays) {
  const IoFault slow{.kind = Fault::delay, .delay_seconds = 0.02, .request = 0};
  const auto tags = order({.seed = 1, .order = MemoryQueue::Options::Order::as_started, .faults = {slow}});
  EXPECT_EQ(std::set(tags.begin(), tags.end()).size(), 20U);
  EXPECT_NE(tags.front(), 0U);
}

TEST_F(MemoryQueueTest, CrashLeavesAnyPartOfWhatIsInFlight) {
  std::set<size_t> lengths;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<std::byte> zeros(kSize);
    ASSERT_EQ(disk_->write(file_.descriptor(), zeros.data(), kSize, 0), static_cast<int64_t>(kSize));
    MemoryQueue queue(disk_, {.seed = seed});
    const IoRequest requests[] = {read(), write()};
    queue.start(requests);
    queue.crash();
    EXPECT_EQ(queue.in_flight(), 0);
    lengths.insert(written_bytes());
  }
  EXPECT_GT(lengths.size(), 15U);
}

TEST_F(MemoryQueueTest, ContentsOutliveTheDescriptorButNotTheFile) {
  MemoryQueue queue(disk_);
  EXPECT_EQ(run(queue, write()), 0);
  {
    const File again = File::open(folder_ / "file");
    IoRequest request = read();
    request.descriptor = again.descriptor();
    EXPECT_EQ(run(queue, request), 0);
    EXPECT_TRUE(std::equal(got_.data(), got_.data() + kSize, sent_.data()));
  }
  std::filesystem::remove(folder_ / "file");
  const File other = File::create(folder_ / "file");
  ASSERT_EQ(::ftruncate(other.descriptor(), kSize), 0);
  IoRequest request = read();
  request.descriptor = other.descriptor();
  EXPECT_EQ(run(queue, request), 0);
  EXPECT_TRUE(std::all_of(got_.data(), got_.data() + kSize, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(MemoryQueueTest, MemoryBeingReadIntoHoldsRubbish) {
  MemoryQueue queue(disk_);
  EXPECT_EQ(run(queue, write()), 0);
  std::copy_n(sent_.data(), kSize, got_.data());
  const IoRequest request = read();
  queue.start({&request, 1});
  EXPECT_NE(std::memcmp(got_.data(), sent_.data(), kSize), 0);
  queue.wait(1);
  EXPECT_EQ(std::memcmp(got_.data(), sent_.data(), kSize), 0);
}

// Without a folder, which the child would leave behind.
TEST(MemoryQueueDeathTest, DataOfAWriteMustNotChange) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const File file = File::adopt("a file without a name", ::memfd_create("test", MFD_CLOEXEC));
  std::vector<std::byte> sent(1000);
  const IoRequest request{Kind::write, file.descriptor(), sent.data(), sent.size()};
  EXPECT_DEATH(
      {
        MemoryQueue queue(std::make_shared<MemoryDisk>());
        queue.start({&request, 1});
        sent[77] = std::byte{1};
        queue.wait(1);
      },
      "changed while it was in flight");
}

}  // namespace
}  // namespace sluice
