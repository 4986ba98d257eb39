#include "engine/train/state_stream.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "io/memory_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/state_trial.h"

namespace sluice {
namespace {

constexpr int64_t kChunk = StateStream::kChunkElements;

// Blocks of two chunks and a tail, of one chunk, and of less.
ModelSpec three_blocks() {
  const std::vector<test::BlockSize> sizes{{2 * kChunk + 6144, 0}, {kChunk, 512}, {2048, 0}};
  return test::model_of_sizes(sizes);
}

// The states of a block in plain memory.
struct Plain {
  std::vector<int16_t> low;
  std::vector<BFloat16> high;
  std::vector<float> m, v, gradient;
  cpu_optim::SplitState state() { return {high, low, m, v}; }
};

class StateStreamTest : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  StateStreamTest() {
    file_ = StateFile::create(test::options_in(folder_), layout(), locks_, {.queue = *queue_});
    for (BlockId block{0}; block.value < file_->layout().block_count(); ++block.value) {
      const size_t count = file_->layout().section_bytes(block, Section::low) / 2;
      Plain& plain = plain_.emplace_back();
      for (size_t i = 0; i < count; ++i) {
        const float x =
            static_cast<float>((i * 2654435761u + static_cast<size_t>(block.value)) % 1000003) / 1e6f;
        const SplitFloat split_x = split(x - 0.5f);
        plain.low.push_back(split_x.low);
        plain.high.push_back(split_x.high);
        plain.m.push_back(x * 1e-3f);
        plain.v.push_back(x * x * 1e-4f);
        plain.gradient.push_back(to_float(to_bfloat16(0.3f - x)));
      }
      put(block, Section::low, std::as_bytes(std::span(plain.low)));
      put(block, Section::high, std::as_bytes(std::span(plain.high)));
      put(block, Section::first_moment, std::as_bytes(std::span(plain.m)));
      put(block, Section::second_moment, std::as_bytes(std::span(plain.v)));
    }
    std::vector<IoFault> faults{{.kind = IoFault::Kind::delay, .delay_seconds = 2e-4, .rate = 0.2},
                                {.kind = IoFault::Kind::short_transfer, .rate = 0.1}};
    queues_ = [this, faults] {
      return std::make_unique<MemoryQueue>(
          disk_, MemoryQueue::Options{.seed = 5, .faults = faults_.empty() ? faults : faults_});
    };
  }
  StateLayout layout() const {
    const std::vector<std::optional<DType>> gradients(3, dtype());
    return StateLayout(three_blocks(), gradients);
  }
  int slot_count() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  void put(BlockId block, Section section, std::span<const std::byte> bytes) {
    file_->write_bytes(*queue_, block, section, 0, 0, bytes);
  }
  std::vector<std::byte> get(BlockId block, Section section, int slot) {
    std::vector<std::byte> bytes(file_->layout().section_bytes(block, section));
    file_->read_bytes(*queue_, block, section, slot, 0, bytes);
    return bytes;
  }
  StreamedBlock streamed(int block, int read_slot, int write_slot) {
    return {
        .block = BlockId{block},
        .home = {Tier::disk, Tier::disk, Tier::disk},
        .read_slot = read_slot,
        .write_slot = write_slot,
        .resident = {},
        .gradient = {dtype(), nullptr, static_cast<int64_t>(plain_[static_cast<size_t>(block)].low.size())}};
  }
  void write_gradients(StateStream& stream) {
    for (int block = 0; block < 3; ++block) {
      const std::vector<float>& values = plain_[static_cast<size_t>(block)].gradient;
      AlignedBuffer memory(values.size() * 4, "gradient");
      if (dtype() == DType::f32) {
        std::memcpy(memory.data(), values.data(), values.size() * 4);
      } else {
        for (size_t i = 0; i < values.size(); ++i)
          reinterpret_cast<BFloat16*>(memory.data())[i] = to_bfloat16(values[i]);
      }
      stream.write_gradient(BlockId{block}, memory.data(), values.size() * size_bytes(dtype()));
    }
  }

  test::TemporaryFolder folder_;
  FolderLocks locks_;
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  std::unique_ptr<IoQueue> queue_ = std::make_unique<MemoryQueue>(disk_);
  std::unique_ptr<StateFile> file_;
  std::vector<Plain> plain_;
  std::vector<IoFault> faults_;
  IoQueueFactory queues_;
};

TEST_P(StateStreamTest, UpdatesAsInOnePiece) {
  const cpu_optim::AdamStep step = cpu_optim::make_adam_step({.learning_rate = 1e-2}, 3, 0.5f);
  AlignedBuffer memory(static_cast<size_t>(slot_count()) * StateStream::kSlotBytes, "slots");
  StateStream stream(*file_, queues_, memory.data(), slot_count());
  // Slot 0 to 1, then 1 in place, in another order.
  const std::vector<std::vector<int>> orders{{0, 1, 2}, {2, 0, 1}};
  for (size_t round = 0; round < orders.size(); ++round) {
    write_gradients(stream);
    std::vector<StreamedBlock> blocks;
    for (const int block : orders[round]) blocks.push_back(streamed(block, round == 0 ? 0 : 1, 1));
    std::array<int64_t, 3> next{};
    stream.begin(blocks, [&](BlockId block, int64_t begin, const cpu_optim::SplitState& state,
                             cpu_optim::FloatView gradient) {
      EXPECT_EQ(begin, next.at(static_cast<size_t>(block.value))) << "block " << block.value;
      next.at(static_cast<size_t>(block.value)) += state.size();
      cpu_optim::update(state, gradient, step);
    });
    for (const int block : orders[round]) {
      stream.finish_next();
      Plain& plain = plain_[static_cast<size_t>(block)];
      EXPECT_EQ(next.at(static_cast<size_t>(block)), static_cast<int64_t>(plain.low.size()));
      cpu_optim::update(plain.state(), std::span<const float>(plain.gradient), step);
    }
  }
  for (int block = 0; block < 3; ++block) {
    const Plain& plain = plain_[static_cast<size_t>(block)];
    const auto holds = [&](Section section, auto& values) {
      return std::ranges::equal(get(BlockId{block}, section, 1), std::as_bytes(std::span(values)));
    };
    EXPECT_TRUE(holds(Section::low, plain.low) && holds(Section::high, plain.high)) << block;
    EXPECT_TRUE(holds(Section::first_moment, plain.m) && holds(Section::second_moment, plain.v)) << block;
  }
  EXPECT_EQ(stream.read_bytes(), stream.written_bytes()) << "states and gradients, once each way";
}

TEST_P(StateStreamTest, ADriveThatFailsNowAndThenIsAskedAgain) {
  faults_ = {{.kind = IoFault::Kind::error, .error_number = EIO, .rate = 0.3, .times = 2}};
  AlignedBuffer memory(static_cast<size_t>(slot_count()) * StateStream::kSlotBytes, "slots");
  StateStream stream(*file_, queues_, memory.data(), slot_count());
  stream.begin({streamed(0, 0, 1)}, [](auto&&...) {});
  stream.finish_next();
  EXPECT_EQ(get(BlockId{0}, Section::low, 1), get(BlockId{0}, Section::low, 0));
  EXPECT_EQ(get(BlockId{0}, Section::second_moment, 1), get(BlockId{0}, Section::second_moment, 0));
}

TEST_P(StateStreamTest, ADriveThatFailsIsNamed) {
  faults_ = {{.kind = IoFault::Kind::error, .error_number = EIO, .only = IoRequest::Kind::read}};
  AlignedBuffer memory(static_cast<size_t>(slot_count()) * StateStream::kSlotBytes, "slots");
  StateStream stream(*file_, queues_, memory.data(), slot_count());
  stream.begin({streamed(0, 0, 1)}, [](auto&&...) {});
  test::expect_error(ErrorKind::runtime, {"read", "Input/output error", "trained.0", "rive"},
                     [&] { stream.finish_next(); });
}

INSTANTIATE_TEST_SUITE_P(Slots, StateStreamTest,
                         ::testing::Combine(::testing::Values(1, 3, 8),
                                            ::testing::Values(DType::f32, DType::bf16)));

}  // namespace
}  // namespace sluice
