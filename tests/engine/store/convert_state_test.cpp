#include "engine/store/convert_state.h"

#include <array>
#include <atomic>
#include <gtest/gtest.h>

#include "cpu_optim/state_codec.h"
#include "io/memory_queue.h"
#include "tests/support/state_trial.h"

namespace sluice {
namespace {

using cpu_optim::StateFormat;

constexpr std::array kStates = {Section::low, Section::high, Section::first_moment, Section::second_moment};

// Of two chunks and a tail with frozen elements, of less than a chunk, and of frozen ones only.
ModelSpec model(StateFormat format) {
  const std::vector<test::BlockSize> sizes{{2 * kChunkElements + 2048, 700'000}, {4096, 0}, {0, 256}};
  ModelSpec model = test::model_of_sizes(sizes);
  model.state_format = format;
  return model;
}

struct Numbers {
  std::vector<float> weight, first_moment, second_moment;
  bool operator==(const Numbers&) const = default;
};

// A block's sections in plain memory.
struct Plain {
  Plain(StateFormat format, int64_t count) {
    for (size_t i = 0; i < kStates.size(); ++i)
      sections[i].resize(state_section_bytes(format, kStates[i], count));
    const auto data = [&](size_t section) {
      return sections[section].empty() ? nullptr : sections[section].data();
    };
    span = {.format = format,
            .size = count,
            .weight = reinterpret_cast<BFloat16*>(data(1)),
            .low = data(0),
            .first_moment = data(2),
            .second_moment = data(3)};
  }
  Plain(StateFormat format, Numbers numbers) : Plain(format, static_cast<int64_t>(numbers.weight.size())) {
    cpu_optim::encode({numbers.weight, numbers.first_moment, numbers.second_moment}, span);
  }
  Numbers numbers() const {
    const auto count = static_cast<size_t>(span.size);
    Numbers found{std::vector<float>(count), std::vector<float>(count), std::vector<float>(count)};
    cpu_optim::decode(span, {found.weight, found.first_moment, found.second_moment});
    return found;
  }
  std::array<std::vector<std::byte>, kStates.size()> sections;  // as kStates
  cpu_optim::StateSpan span;
};

class ConvertState : public ::testing::TestWithParam<std::tuple<StateFormat, StateFormat>> {
 protected:
  std::unique_ptr<StateFile> create(StateFormat format) {
    return StateFile::create(test::options_in(folder_), StateLayout(model(format)), locks_, {queue_});
  }
  // Numbers as after some training, those of small steps beside large ones.
  static Numbers some_numbers(int64_t count, int32_t block) {
    Numbers numbers;
    for (int64_t i = 0; i < count; ++i) {
      const float x = static_cast<float>((i * 2654435761 + block) % 1000003) / 1e6f;
      numbers.weight.push_back(x - 0.5f);
      numbers.first_moment.push_back((x - 0.5f) * 1e-3f);
      numbers.second_moment.push_back(x * x * 1e-4f);
    }
    return numbers;
  }
  // A committed state, block after block in alternating slots.
  std::unique_ptr<StateFile> make_old(StateFormat format) {
    std::unique_ptr<StateFile> state = create(format);
    std::vector<uint8_t> slots;
    for (BlockId block{0}; block.value < state->layout().block_count(); ++block.value) {
      const int slot = block.value % 2;
      slots.push_back(static_cast<uint8_t>(slot));
      const auto count = static_cast<int64_t>(state->layout().section_bytes(block, Section::high)) / 2;
      const Plain& plain = plains_.emplace_back(format, some_numbers(count, block.value));
      for (size_t i = 0; i < kStates.size(); ++i)
        state->write_bytes(queue_, block, kStates[i], slot, 0, plain.sections[i]);
      frozen_.push_back(test::contents(state->layout(), block, Section::frozen, 0));
      state->write_bytes(queue_, block, Section::frozen, 0, 0, frozen_.back());
    }
    state->commit({.applied_step = 7, .run = {{"a", "run"}}}, slots);
    return state;
  }
  std::vector<std::byte> read(StateFile& state, BlockId block, Section section, int slot = 0) {
    std::vector<std::byte> bytes(state.layout().section_bytes(block, section));
    state.read_bytes(queue_, block, section, slot, 0, bytes);
    return bytes;
  }

  test::TemporaryFolder folder_;
  FolderLocks locks_;
  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  MemoryQueue queue_{disk_};
  std::vector<Plain> plains_;
  std::vector<std::vector<std::byte>> frozen_;
};

TEST_P(ConvertState, HasTheNumbersOfTheOldOneRoundedOnce) {
  const auto [from, to] = GetParam();
  const std::unique_ptr<StateFile> old = make_old(from);
  const std::unique_ptr<StateFile> made = create(to);
  uint64_t done = 0, total = 0;
  ASSERT_TRUE(convert_state(*old, *made, {.queue = queue_, .progress = [&](uint64_t some, uint64_t all) {
                                            EXPECT_GT(some, done);
                                            done = some;
                                            total = all;
                                          }}));
  EXPECT_EQ(done, total);
  // The numbers of 8-bit codes have more bits than a bf16.
  const size_t moment_bytes = cpu_optim::moment_bytes(to, 256);
  const bool exact =
      (moment_bytes == size_t{4} * 256 || moment_bytes == cpu_optim::moment_bytes(from, 256)) &&
      (cpu_optim::low_bytes(to, 1) > 0 || cpu_optim::low_bytes(from, 1) == 0);
  for (BlockId block{0}; block.value < made->layout().block_count(); ++block.value) {
    SCOPED_TRACE(block.value);
    const Plain& plain = plains_[static_cast<size_t>(block.value)];
    const Plain expected(to, plain.numbers());
    for (size_t i = 0; i < kStates.size(); ++i)
      EXPECT_EQ(read(*made, block, kStates[i]), expected.sections[i]) << name(kStates[i]);
    EXPECT_EQ(read(*made, block, Section::frozen), frozen_[static_cast<size_t>(block.value)]);
    if (exact) {
      EXPECT_EQ(expected.numbers(), plain.numbers());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConvertState,
                         ::testing::Values(std::tuple{StateFormat::split, StateFormat::fp32},
                                           std::tuple{StateFormat::fp32, StateFormat::split},
                                           std::tuple{StateFormat::split, StateFormat::int8},
                                           std::tuple{StateFormat::int8, StateFormat::split},
                                           std::tuple{StateFormat::split_bf16, StateFormat::bf16},
                                           std::tuple{StateFormat::bf16, StateFormat::split_bf16},
                                           std::tuple{StateFormat::int8, StateFormat::bf16}),
                         [](const auto& parameters) {
                           return std::string(cpu_optim::name(std::get<0>(parameters.param))) + "_to_" +
                                  std::string(cpu_optim::name(std::get<1>(parameters.param)));
                         });

class ConvertStateEnds : public ConvertState {};

TEST_P(ConvertStateEnds, WhereItIsStoppedAndTheOldStateIsThereStill) {
  const std::unique_ptr<StateFile> old = make_old(StateFormat::split);
  const std::vector<std::byte> before = read(*old, BlockId{0}, Section::high);
  {
    const std::unique_ptr<StateFile> made = create(StateFormat::int8);
    std::atomic<bool> stop = false;
    EXPECT_FALSE(convert_state(
        *old, *made, {.queue = queue_, .progress = [&](uint64_t, uint64_t) { stop = true; }, .stop = &stop}));
  }
  const std::unique_ptr<StateFile> again = StateFile::open(
      folder_ / "state", old->manifest_identity(), StateLayout(model(StateFormat::split)), locks_, {queue_});
  EXPECT_EQ(again->generation().facts.applied_step, 7);
  EXPECT_EQ(read(*again, BlockId{0}, Section::high), before);
}

INSTANTIATE_TEST_SUITE_P(Once, ConvertStateEnds,
                         ::testing::Values(std::tuple{StateFormat::split, StateFormat::int8}));

}  // namespace
}  // namespace sluice
