#include "engine/store/state_window.h"

#include <gtest/gtest.h>
#include <random>

#include "io/memory_queue.h"
#include "tests/support/state_trial.h"

namespace sluice {
namespace {

// Counts what passes.
class CountingQueue final : public IoQueue {
 public:
  explicit CountingQueue(std::shared_ptr<MemoryDisk> disk) : queue_(std::move(disk)) {}
  std::string_view name() const override { return "counting"; }
  int capacity() const override { return queue_.capacity(); }
  int in_flight() const override { return queue_.in_flight(); }
  void start(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests)
      (request.kind == IoRequest::Kind::read ? read_bytes : written_bytes) += request.size_bytes;
    queue_.start(requests);
  }
  std::span<const IoCompletion> wait(int least) override { return queue_.wait(least); }

  size_t read_bytes = 0, written_bytes = 0;

 private:
  MemoryQueue queue_;
};

class StateWindowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    state_ =
        StateFile::create(test::options_in(folder_), StateLayout(test::model_of_edges()), locks_, {queue_});
    section_bytes_ = state_->layout().section_bytes(kBlock, kSection);
    source_ = test::contents(state_->layout(), kBlock, kSection, 1);
    queue_.read_bytes = queue_.written_bytes = 0;
  }

  static constexpr BlockId kBlock{6};
  static constexpr Section kSection = Section::first_moment;  // some 10 MiB, with a tail
  test::TemporaryFolder folder_;
  FolderLocks locks_;
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  CountingQueue queue_{disk_};
  std::unique_ptr<StateFile> state_;
  size_t section_bytes_ = 0;
  std::vector<std::byte> source_;
};

TEST_F(StateWindowTest, GoingThroughInOrderMovesEachByteOnce) {
  StateWindow window(*state_, queue_);
  constexpr size_t kStep = 100000;  // divides no power of two
  for (size_t begin = 0; begin < section_bytes_; begin += kStep) {
    const size_t size = std::min(kStep, section_bytes_ - begin);
    window.write(kBlock, kSection, 0, begin, std::span(source_).subspan(begin, size));
  }
  window.flush();
  EXPECT_EQ(queue_.read_bytes, 0u);
  EXPECT_EQ(queue_.written_bytes, section_bytes_);
  queue_.written_bytes = 0;
  std::vector<std::byte> read(section_bytes_);
  for (size_t begin = 0; begin < section_bytes_; begin += kStep) {
    const size_t size = std::min(kStep, section_bytes_ - begin);
    window.read(kBlock, kSection, 0, begin, std::span(read).subspan(begin, size));
  }
  EXPECT_EQ(read, source_);
  // The window still held its last bytes.
  EXPECT_LE(queue_.read_bytes, section_bytes_);
  EXPECT_EQ(queue_.written_bytes, 0u);
}

TEST_F(StateWindowTest, ABitOfAMiBIsMergedWithTheRest) {
  {
    StateWindow window(*state_, queue_);
    window.write(kBlock, kSection, 0, 0, source_);
    window.flush();
  }
  std::vector<std::byte> expected = source_;
  StateWindow window(*state_, queue_);
  // Two islands in one MiB, and one across two of them.
  for (const size_t begin : {size_t{100}, size_t{5000}, 3 * kChecksumBytes - 10}) {
    const std::vector<std::byte> island(20, std::byte{7});
    window.write(kBlock, kSection, 0, begin, island);
    std::copy(island.begin(), island.end(), expected.begin() + static_cast<ptrdiff_t>(begin));
  }
  std::vector<std::byte> read(section_bytes_);
  window.read(kBlock, kSection, 0, 0, read);
  EXPECT_EQ(read, expected);
  window.flush();
  state_->read_bytes(queue_, kBlock, kSection, 0, 0, read);
  EXPECT_EQ(read, expected);
}

TEST_F(StateWindowTest, DoesWhatMemoryWouldDo) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::array<std::vector<std::byte>, 2> expected;  // by slot
  for (auto& bytes : expected) bytes.resize(section_bytes_);
  StateWindow window(*state_, queue_);
  for (int round = 0; round < 600; ++round) {
    const size_t slot = random() % 8 == 0 ? 1 : 0;
    std::vector<std::byte>& mine = expected[slot];
    const size_t begin = random() % section_bytes_;
    const size_t size =
        std::min(section_bytes_ - begin, static_cast<size_t>(random() >> (44 + random() % 20)));
    const auto from = static_cast<ptrdiff_t>(begin);
    if (random() % 2 == 0) {
      std::copy_n(source_.begin() + static_cast<ptrdiff_t>(random() % (section_bytes_ - size + 1)), size,
                  mine.begin() + from);
      window.write(kBlock, kSection, static_cast<int>(slot), begin, std::span(mine).subspan(begin, size));
    } else {
      std::vector<std::byte> read(size);
      window.read(kBlock, kSection, static_cast<int>(slot), begin, read);
      ASSERT_TRUE(std::equal(read.begin(), read.end(), mine.begin() + from)) << round;
    }
  }
  window.flush();
  for (size_t slot = 0; slot < 2; ++slot) {
    std::vector<std::byte> read(section_bytes_);
    state_->read_bytes(queue_, kBlock, kSection, static_cast<int>(slot), 0, read);
    EXPECT_EQ(read, expected[slot]);
  }
}

}  // namespace
}  // namespace sluice
