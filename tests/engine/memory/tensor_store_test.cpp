#include "engine/memory/tensor_store.h"

#include <array>
#include <bit>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/test_device.h"

namespace sluice {
namespace {

constexpr TensorId kTable{0}, kNorm{1}, kFrozenBf16{2}, kFrozenFp32{3};

// "table" lies in three blocks, out of order; block 2 holds a bit of everything.
ModelSpec model() {
  return {
      .tensors =
          {{.name = "table", .rows = 100, .cols = 7},
           {.name = "norm", .rows = 1, .cols = 300},
           {.name = "frozen bf16", .rows = 6, .cols = 50, .trainable = false},
           {.name = "frozen fp32", .rows = 4, .cols = 33, .storage_dtype = DType::f32, .trainable = false}},
      .blocks = {{.name = "middle", .parts = {{kTable, 30, 60}}},
                 {.name = "begin", .parts = {{kTable, 0, 30}, {kFrozenFp32, 2, 4}}},
                 {.name = "end",
                  .parts = {{kFrozenBf16, 0, 6}, {kTable, 60, 100}, {kNorm, 0, 1}, {kFrozenFp32, 0, 2}}}}};
}

// NaNs with payloads, infinities, subnormals, the largest, ties of the halves, then random patterns.
std::vector<float> patterns(size_t count, uint32_t seed) {
  std::vector<float> values;
  for (const uint32_t bits : {0x00000000u, 0x80000000u, 0x00000001u, 0x807fffffu, 0x7f800000u, 0xff800000u,
                              0x7f800001u, 0x7fc00000u, 0xffffffffu, 0x7fbfffffu, 0x7f7fffffu, 0xff7fffffu,
                              0x3f808000u, 0x3f818000u, 0xbf807fffu, 0x7f7f8000u, 0x7fff8000u}) {
    if (values.size() < count) values.push_back(std::bit_cast<float>(bits));
  }
  std::mt19937 random(seed);
  while (values.size() < count) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return values;
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

template <class T>
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

class TensorStoreTest : public testing::Test {
 protected:
  size_t elements(TensorId tensor) const {
    return static_cast<size_t>(store_.model().tensor(tensor).rows * store_.model().tensor(tensor).cols);
  }
  std::vector<float> read(const TensorStore& store, TensorId tensor) const {
    std::vector<float> values(elements(tensor));
    store.read_rows(tensor, 0, store.model().tensor(tensor).rows, values.data());
    return values;
  }

  test::TestDevice host_;
  TierBudget budget_{Tier::host};
  TensorStore store_{model(), host_.device(), budget_, true};
};

TEST_F(TensorStoreTest, EveryBitOfATrainableTensorComesBack) {
  for (const TensorId tensor : {kTable, kNorm, kFrozenFp32}) {
    const std::vector<float> values = patterns(elements(tensor), 7);
    store_.write_rows(tensor, 0, store_.model().tensor(tensor).rows, values.data());
    EXPECT_EQ(bits_of(read(store_, tensor)), bits_of(values)) << store_.model().tensor(tensor).name;
  }
}

TEST_F(TensorStoreTest, FrozenTensorsAreRoundedToTheirDtype) {
  std::vector<float> values = patterns(elements(kFrozenBf16), 8);
  store_.write_rows(kFrozenBf16, 0, 6, values.data());
  for (float& value : values) value = to_float(to_bfloat16(value));
  EXPECT_EQ(bits_of(read(store_, kFrozenBf16)), bits_of(values));
}

TEST_F(TensorStoreTest, RowRangesCrossBlocks) {
  const std::vector<float> values = patterns(elements(kTable), 9);
  // Pieces that begin and end within blocks and on their borders, in no order.
  for (const auto& [begin, count] : {std::pair{55, 45}, {0, 10}, {10, 20}, {30, 1}, {31, 24}, {100, 0}}) {
    store_.write_rows(kTable, begin, count, values.data() + begin * 7);
  }
  EXPECT_EQ(bits_of(read(store_, kTable)), bits_of(values));
  std::vector<float> some(50 * 7);
  store_.read_rows(kTable, 25, 50, some.data());
  EXPECT_EQ(bits_of(some), bits_of({values.begin() + 25 * 7, values.begin() + 75 * 7}));
}

TEST_F(TensorStoreTest, WritesOnlyItsRows) {
  const std::vector<float> ones(elements(kTable), 1.0F);
  store_.write_rows(kTable, 0, 100, ones.data());
  const std::vector<float> twos(3 * 7, 2.0F);
  store_.write_rows(kTable, 59, 3, twos.data());
  const std::vector<float> got = read(store_, kTable);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i >= 59 * 7 && i < 62 * 7 ? 2.0F : 1.0F) << i;
  EXPECT_EQ(read(store_, kNorm), std::vector<float>(300, 0.0F));
}

TEST_F(TensorStoreTest, FindsRows) {
  const auto expect = [&](int64_t row, int block, int part, int64_t within) {
    const TensorStore::Place place = store_.find(kTable, row);
    EXPECT_EQ(place.block, BlockId{block}) << row;
    EXPECT_EQ(place.part, part) << row;
    EXPECT_EQ(place.row, within) << row;
  };
  expect(0, 1, 0, 0);
  expect(29, 1, 0, 29);
  expect(30, 0, 0, 0);
  expect(59, 0, 0, 29);
  expect(60, 2, 1, 0);
  expect(99, 2, 1, 39);
}

TEST_F(TensorStoreTest, StateIsWhereTheLayoutSays) {
  const float value = 1.0F + 0x1p-10F;  // high 0x3f80, low 0x2000
  store_.write_rows(kNorm, 0, 1, std::vector<float>(300, value).data());
  const BlockState state = store_.state(BlockId{2});
  const BlockLayout& layout = store_.layout(BlockId{2});
  const size_t begin = static_cast<size_t>(layout.part(2).span_begin);
  EXPECT_EQ(state.high[begin].bits, 0x3f80);
  EXPECT_EQ(as<int16_t>(state.low)[begin], 0x2000);
  EXPECT_EQ(state.high[begin + 299].bits, 0x3f80);
  EXPECT_EQ(state.high[begin + 300].bits, 0) << "padding";
  EXPECT_EQ(state.low.data(), store_.weights(BlockId{2}));
  EXPECT_EQ(reinterpret_cast<std::byte*>(state.high.data()), store_.weights(BlockId{2}) + layout.low_bytes());
  EXPECT_EQ(state.frozen.data(), store_.weights(BlockId{2}) + layout.trained_bytes());
  EXPECT_EQ(state.first_moment.size(), static_cast<size_t>(layout.logical_elements()) * 4);
  EXPECT_EQ(state.second_moment.data(), state.first_moment.data() + state.first_moment.size());
}

TEST_F(TensorStoreTest, EveryFormatKeepsWhatItHasRoomFor) {
  using cpu_optim::StateFormat;
  for (const StateFormat format : cpu_optim::kStateFormats) {
    SCOPED_TRACE(cpu_optim::name(format));
    ModelSpec with = model();
    with.state_format = format;
    TensorStore store(with, host_.device(), budget_, true);
    std::vector<float> values = patterns(elements(kTable), 9);
    store.write_rows(kTable, 0, 100, values.data());
    const bool has_master = cpu_optim::low_bytes(format, 1) > 0;
    for (float& value : values) value = has_master ? value : to_float(split(value).high);
    EXPECT_EQ(bits_of(read(store, kTable)), bits_of(values));
    // The weight is the same in all of them.
    store_.write_rows(kTable, 0, 100, patterns(elements(kTable), 9).data());
    for (BlockId block{0}; block.value < store.block_count(); ++block.value) {
      const auto weights = std::as_bytes(store.state(block).high);
      EXPECT_TRUE(std::ranges::equal(weights, std::as_bytes(store_.state(block).high)));
      const BlockState state = store.state(block);
      const size_t count = state.high.size();
      EXPECT_EQ(state.low.size(), cpu_optim::low_bytes(format, static_cast<int64_t>(count)));
      EXPECT_EQ(state.first_moment.size(), cpu_optim::moment_bytes(format, static_cast<int64_t>(count)));
    }
  }
}

TEST_F(TensorStoreTest, SpansCountThroughTheModel) {
  uint64_t next = 0;
  for (BlockId block{0}; block.value < store_.block_count(); ++block.value) {
    const cpu_optim::StateSpan span = store_.states(block);
    const BlockState state = store_.state(block);
    EXPECT_EQ(span.format, cpu_optim::StateFormat::split);
    EXPECT_EQ(span.first_element, next);
    EXPECT_EQ(span.size, store_.layout(block).logical_elements());
    next += static_cast<uint64_t>(span.size);
    EXPECT_TRUE(span.weight == state.high.data() && span.low == state.low.data());
    EXPECT_TRUE(span.first_moment == state.first_moment.data() &&
                span.second_moment == state.second_moment.data());
  }
}

TEST_F(TensorStoreTest, BudgetHoldsWhatTheStaticSizesSay) {
  EXPECT_EQ(budget_.used_bytes(),
            TensorStore::weight_arena_bytes(model()) + TensorStore::moment_arena_bytes(model()));
  // Pages of low halves, and of high halves and frozen bytes: 256 elements; 256 and 512 frozen bytes; 512 +
  // 512 elements and 1536 frozen bytes.
  EXPECT_EQ(TensorStore::weight_arena_bytes(model()), 8192u + 12288u + 12288u);
  TierBudget other(Tier::host);
  const TensorStore without(model(), host_.device(), other, false);
  EXPECT_EQ(other.used_bytes(), TensorStore::weight_arena_bytes(model()));
  EXPECT_TRUE(without.state(BlockId{2}).first_moment.empty());
}

void fill_all(TensorStore& store) {
  for (int32_t tensor = 0; tensor < 4; ++tensor) {
    const TensorSpec& spec = store.model().tensor(TensorId{tensor});
    const std::vector<float> values =
        patterns(static_cast<size_t>(spec.rows * spec.cols), 11 + static_cast<uint32_t>(tensor));
    store.write_rows(TensorId{tensor}, 0, spec.rows, values.data());
  }
}

TEST_F(TensorStoreTest, HashSeesEveryRegionOfEveryBlock) {
  fill_all(store_);
  const uint64_t hash = store_.hash();
  for (int block = 0; block < store_.block_count(); ++block) {
    const BlockState state = store_.state(BlockId{block});
    int region = 0;
    const auto expect_seen = [&](auto span) {
      const std::span<std::byte> bytes = std::as_writable_bytes(span);
      for (const size_t at : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
        bytes[at] ^= std::byte{1};
        EXPECT_NE(store_.hash(), hash) << "block " << block << " region " << region << " byte " << at;
        bytes[at] ^= std::byte{1};
        EXPECT_EQ(store_.hash(), hash);
      }
      ++region;
    };
    expect_seen(state.low);
    expect_seen(state.high);
    if (!state.frozen.empty()) expect_seen(state.frozen);
    expect_seen(state.first_moment);
    expect_seen(state.second_moment);
  }
}

TEST_F(TensorStoreTest, HashDoesNotDependOnPlaceOrHistory) {
  fill_all(store_);
  TierBudget budget(Tier::host);
  const HostArena in_the_way(budget, host_.device(), size_t{3} << 20, "in the way");
  TensorStore other(model(), host_.device(), budget, true);
  EXPECT_NE(other.hash(), store_.hash());
  const std::vector<float> junk(elements(kTable), 3.0F);
  other.write_rows(kTable, 0, 100, junk.data());
  fill_all(other);
  EXPECT_EQ(other.hash(), store_.hash());
  EXPECT_NE(other.weights(BlockId{0}), store_.weights(BlockId{0}));
}

// Blocks in which two regions swap bytes must differ too: the hash is of one order.
TEST_F(TensorStoreTest, HashKnowsWhichMomentIsWhich) {
  const BlockState state = store_.state(BlockId{0});
  state.first_moment[3] = std::byte{1};
  const uint64_t first = store_.hash();
  state.first_moment[3] = std::byte{0};
  state.second_moment[3] = std::byte{1};
  EXPECT_NE(store_.hash(), first);
}

TEST_F(TensorStoreTest, VersionsCountUpdates) {
  const auto stream = host_.device().make_stream(gpu::StreamKind::cpu, "updates");
  EXPECT_EQ(store_.version(BlockId{1}), 0u);
  EXPECT_FALSE(store_.version_ready(BlockId{1}));
  store_.set_version(BlockId{1}, stream->record());
  store_.set_version(BlockId{1}, stream->record());
  EXPECT_EQ(store_.version(BlockId{1}), 2u);
  store_.version_ready(BlockId{1})->wait();
  EXPECT_EQ(store_.version(BlockId{0}), 0u);
}

class TensorStoreDeathTest : public TensorStoreTest {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(TensorStoreDeathTest, EveryRowIsInOneBlock) {
  ModelSpec gap = model();
  gap.blocks[0].parts[0].row_begin = 31;
  EXPECT_DEATH(TensorStore(gap, host_.device(), budget_, false), "table");
  ModelSpec twice = model();
  twice.blocks[0].parts[0].row_end = 61;
  EXPECT_DEATH(TensorStore(twice, host_.device(), budget_, false), "table");
  ModelSpec missing = model();
  missing.blocks[2].parts.erase(missing.blocks[2].parts.begin() + 2);
  EXPECT_DEATH(TensorStore(missing, host_.device(), budget_, false), "norm");
  EXPECT_DEATH((void)store_.find(kTable, 100), "");
}

}  // namespace
}  // namespace sluice
