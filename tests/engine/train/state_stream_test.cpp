#include "engine/train/state_stream.h"

#include <gtest/gtest.h>

#include "cpu_optim/adamw.h"
#include "cpu_optim/state_codec.h"
#include "engine/base/error.h"
#include "io/memory_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/state_trial.h"

namespace sluice {
namespace {

constexpr int64_t kChunk = kChunkElements;
using cpu_optim::StateFormat;

// Blocks of two chunks and a tail, of one chunk, and of less.
ModelSpec three_blocks(StateFormat format) {
  const std::vector<test::BlockSize> sizes{{2 * kChunk + 6144, 0}, {kChunk, 512}, {2048, 0}};
  ModelSpec model = test::model_of_sizes(sizes);
  model.state_format = format;
  return model;
}

constexpr std::array kStates = {Section::low, Section::high, Section::first_moment, Section::second_moment};

// The states of a block in plain memory.
struct Plain {
  cpu_optim::StateSpan span;
  std::array<std::vector<std::byte>, kStates.size()> sections;  // as kStates
  std::vector<float> gradient;
};

// Numbers like those of a training, in the format.
Plain make_plain(StateFormat format, int64_t count, int32_t block, uint64_t first_element) {
  Plain plain;
  std::array<std::vector<float>, 3> numbers;
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>((i * 2654435761 + block) % 1000003) / 1e6f;
    numbers[0].push_back(x - 0.5f);
    numbers[1].push_back(x * 1e-3f);
    numbers[2].push_back(x * x * 1e-4f);
    plain.gradient.push_back(to_float(to_bfloat16(0.3f - x)));
  }
  for (size_t i = 0; i < kStates.size(); ++i)
    plain.sections[i].resize(state_section_bytes(format, kStates[i], count));
  const auto data = [&](size_t section) {
    return plain.sections[section].empty() ? nullptr : plain.sections[section].data();
  };
  plain.span = {.format = format,
                .size = count,
                .weight = reinterpret_cast<BFloat16*>(data(1)),
                .low = data(0),
                .first_moment = data(2),
                .second_moment = data(3),
                .first_element = first_element};
  cpu_optim::encode({numbers[0], numbers[1], numbers[2]}, plain.span);
  return plain;
}

class StateStreamTest : public ::testing::TestWithParam<std::tuple<int, DType, StateFormat>> {
 protected:
  StateStreamTest() {
    file_ = StateFile::create(test::options_in(folder_), layout(), locks_, {.queue = *queue_});
    uint64_t first = 0;
    for (BlockId block{0}; block.value < file_->layout().block_count(); ++block.value) {
      const auto count = static_cast<int64_t>(file_->layout().section_bytes(block, Section::high)) / 2;
      plain_.push_back(make_plain(format(), count, block.value, first));
      first += static_cast<uint64_t>(count);
      for (size_t i = 0; i < kStates.size(); ++i) put(block, kStates[i], plain_.back().sections[i]);
    }
    std::vector<IoFault> faults{{.kind = IoFault::Kind::delay, .delay_seconds = 2e-4, .rate = 0.2},
                                {.kind = IoFault::Kind::short_transfer, .rate = 0.1}};
    queues_ = [this, faults](const auto&) {
      return std::make_unique<MemoryQueue>(
          disk_, MemoryQueue::Options{.seed = 5, .faults = faults_.empty() ? faults : faults_});
    };
  }
  StateLayout layout() const {
    const std::vector<std::optional<DType>> gradients(3, dtype());
    return StateLayout(three_blocks(format()), gradients);
  }
  int slot_count() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  static StateFormat format() { return std::get<2>(GetParam()); }
  size_t memory_bytes() const {
    return static_cast<size_t>(slot_count()) * StateStream::slot_bytes(format());
  }
  void put(BlockId block, Section section, std::span<const std::byte> bytes) {
    file_->write_bytes(*queue_, block, section, 0, 0, bytes);
  }
  std::vector<std::byte> get(BlockId block, Section section, int slot) {
    std::vector<std::byte> bytes(file_->layout().section_bytes(block, section));
    file_->read_bytes(*queue_, block, section, slot, 0, bytes);
    return bytes;
  }
  StreamedBlock streamed(int block, int read_slot, int write_slot) {
    const cpu_optim::StateSpan& all = plain_[static_cast<size_t>(block)].span;
    return {.block = BlockId{block},
            .home = {Tier::disk, Tier::disk, Tier::disk},
            .read_slot = read_slot,
            .write_slot = write_slot,
            .resident = {.format = all.format, .size = all.size, .first_element = all.first_element},
            .gradient = {dtype(), nullptr, all.size}};
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
  const cpu_optim::AdamStep step = cpu_optim::make_adam_step({.learning_rate = 1e-2}, 3, 0.5f, 42);
  AlignedBuffer memory(memory_bytes(), "slots");
  StateStream stream(*file_, queues_, memory.bytes());
  // Slot 0 to 1, then 1 in place, in other orders; what is read ahead is what the second asks for, and not
  // what the third does.
  const std::vector<std::vector<int>> orders{{0, 1, 2}, {2, 0, 1}, {1, 0, 2}};
  const auto blocks_of = [&](size_t order, int read_slot) {
    std::vector<StreamedBlock> blocks;
    for (const int block : orders[order]) blocks.push_back(streamed(block, read_slot, 1));
    return blocks;
  };
  for (size_t round = 0; round < orders.size(); ++round) {
    if (round == 2) {
      EXPECT_EQ(stream.read_bytes(), stream.written_bytes()) << "states and gradients, once each way";
    }
    if (round > 0) stream.read_ahead(blocks_of(1, 1));
    write_gradients(stream);
    const std::vector<StreamedBlock> blocks = blocks_of(round, round == 0 ? 0 : 1);
    std::array<int64_t, 3> next{};
    stream.begin(blocks, [&](BlockId block, int64_t begin, const cpu_optim::StateSpan& state,
                             cpu_optim::FloatView gradient) {
      EXPECT_EQ(begin, next.at(static_cast<size_t>(block.value))) << "block " << block.value;
      next.at(static_cast<size_t>(block.value)) += state.size;
      cpu_optim::update(state, gradient, step);
    });
    for (const int block : orders[round]) {
      stream.finish_next();
      Plain& plain = plain_[static_cast<size_t>(block)];
      EXPECT_EQ(next.at(static_cast<size_t>(block)), plain.span.size);
      cpu_optim::update(plain.span, std::span<const float>(plain.gradient), step);
    }
  }
  for (int block = 0; block < 3; ++block) {
    const Plain& plain = plain_[static_cast<size_t>(block)];
    for (size_t i = 0; i < kStates.size(); ++i)
      EXPECT_EQ(get(BlockId{block}, kStates[i], 1), plain.sections[i]) << block << " " << name(kStates[i]);
  }
}

TEST_P(StateStreamTest, ADriveThatFailsNowAndThenIsAskedAgain) {
  faults_ = {{.kind = IoFault::Kind::error, .error_number = EIO, .rate = 0.3, .times = 2}};
  AlignedBuffer memory(memory_bytes(), "slots");
  StateStream stream(*file_, queues_, memory.bytes());
  stream.begin({streamed(0, 0, 1)}, [](auto&&...) {});
  stream.finish_next();
  for (const Section section : kStates)
    EXPECT_EQ(get(BlockId{0}, section, 1), get(BlockId{0}, section, 0)) << name(section);
}

TEST_P(StateStreamTest, ADriveThatFailsIsNamed) {
  faults_ = {{.kind = IoFault::Kind::error, .error_number = EIO, .only = IoRequest::Kind::read}};
  AlignedBuffer memory(memory_bytes(), "slots");
  StateStream stream(*file_, queues_, memory.bytes());
  stream.begin({streamed(0, 0, 1)}, [](auto&&...) {});
  test::expect_error(ErrorKind::runtime, {"read", "Input/output error", "trained.0", "rive"},
                     [&] { stream.finish_next(); });
}

constexpr auto kNameOf = [](const auto& parameters) {
  return std::to_string(std::get<0>(parameters.param)) + "_" +
         std::string(name(std::get<1>(parameters.param))) + "_" +
         std::string(cpu_optim::name(std::get<2>(parameters.param)));
};

INSTANTIATE_TEST_SUITE_P(Slots, StateStreamTest,
                         ::testing::Combine(::testing::Values(1, 3, 8),
                                            ::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(StateFormat::split)),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Formats, StateStreamTest,
                         ::testing::Combine(::testing::Values(3), ::testing::Values(DType::bf16),
                                            ::testing::Values(StateFormat::split_bf16, StateFormat::bf16,
                                                              StateFormat::int8, StateFormat::fp32)),
                         kNameOf);

}  // namespace
}  // namespace sluice
