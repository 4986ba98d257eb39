#include "engine/store/state_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "engine/memory/block_layout.h"
#include "tests/support/state_trial.h"

namespace sluice {
namespace {

std::vector<std::optional<DType>> gradients(size_t block_count, std::optional<DType> dtype) {
  return std::vector<std::optional<DType>>(block_count, dtype);
}

TEST(StateLayout, SectionsHaveTheBytesOfTheirBlocks) {
  const ModelSpec model = test::model_of_edges();
  const StateLayout layout(model, gradients(model.blocks.size(), DType::bf16));
  ASSERT_EQ(layout.block_count(), 7);
  for (int32_t i = 0; i < layout.block_count(); ++i) {
    const BlockLayout block(model, BlockId{i});
    const auto elements = static_cast<size_t>(block.logical_elements());
    EXPECT_EQ(layout.section_bytes(BlockId{i}, Section::low), elements * 2);
    EXPECT_EQ(layout.section_bytes(BlockId{i}, Section::high), elements * 2);
    EXPECT_EQ(layout.section_bytes(BlockId{i}, Section::frozen), block.frozen_bytes());
    EXPECT_EQ(layout.section_bytes(BlockId{i}, Section::first_moment), elements * 4);
    EXPECT_EQ(layout.section_bytes(BlockId{i}, Section::second_moment), elements * 4);
    EXPECT_EQ(layout.section_bytes(BlockId{i}, Section::gradient), elements * 2);
  }
  EXPECT_EQ(layout.section_bytes(BlockId{1}, Section::frozen), 512u);
}

ModelSpec with_format(ModelSpec model, cpu_optim::StateFormat format) {
  model.state_format = format;
  return model;
}

TEST(StateLayout, ChunksOfEveryFormatAreWholeChecksumBlocks) {
  for (const cpu_optim::StateFormat format : cpu_optim::kStateFormats) {
    SCOPED_TRACE(cpu_optim::name(format));
    const StateLayout layout(with_format(test::model_of_edges(), format));
    for (const Section section :
         {Section::low, Section::high, Section::first_moment, Section::second_moment}) {
      const size_t block_bytes = layout.checksum_bytes(section);
      EXPECT_LE(block_bytes, kChecksumBytes);
      EXPECT_EQ(block_bytes % 4096, 0u);
      EXPECT_EQ(state_section_bytes(format, section, kChunkElements) % block_bytes, 0u) << name(section);
      size_t bytes = 0;
      for (int32_t i = 0; i < layout.block_count(); ++i) {
        const int64_t elements = BlockLayout(layout.model(), BlockId{i}).logical_elements();
        bytes = layout.section_bytes(BlockId{i}, section);
        EXPECT_EQ(bytes, state_section_bytes(format, section, elements));
        EXPECT_EQ(layout.checksum_count(BlockId{i}, section), (bytes + block_bytes - 1) / block_bytes);
      }
    }
  }
}

TEST(StateLayout, NothingOverlapsAndLargeSectionsBeginAtAMiB) {
  const StateLayout layout(test::model_of_edges());
  std::map<uint64_t, uint64_t> ranges;  // begin to end
  for (int32_t i = 0; i < layout.block_count(); ++i) {
    for (const Section section : kPersistedSections) {
      const size_t bytes = layout.section_bytes(BlockId{i}, section);
      if (bytes == 0) continue;
      for (int slot = 0; slot < kSlotCount; ++slot) {
        const uint64_t begin = layout.offset(BlockId{i}, section, slot);
        if (section == Section::frozen && slot == 1) {
          EXPECT_EQ(begin, layout.offset(BlockId{i}, section, 0)) << "frozen parts have one place";
          continue;
        }
        EXPECT_EQ(begin % (bytes >= kChecksumBytes ? kChecksumBytes : 4096), 0u);
        EXPECT_TRUE(ranges.emplace(begin, begin + (bytes + 4095) / 4096 * 4096).second);
      }
    }
  }
  uint64_t end = 0;
  for (const auto& [range_begin, range_end] : ranges) {
    EXPECT_GE(range_begin, end);
    end = range_end;
  }
  EXPECT_LE(end, layout.state_bytes());
  EXPECT_EQ(layout.state_bytes() % kChecksumBytes, 0u);
}

TEST(StateLayout, ChecksumsAreNumberedThrough) {
  const ModelSpec model = test::model_of_edges();
  const StateLayout layout(model, gradients(model.blocks.size(), DType::f32));
  size_t next = 0, next_gradient = 0;
  for (int32_t i = 0; i < layout.block_count(); ++i) {
    for (const Section section : kPersistedSections) {
      EXPECT_EQ(layout.checksum_begin(BlockId{i}, section), next);
      next += layout.checksum_count(BlockId{i}, section);
    }
    EXPECT_EQ(layout.checksum_begin(BlockId{i}, Section::gradient), next_gradient);
    next_gradient += layout.checksum_count(BlockId{i}, Section::gradient);
  }
  EXPECT_EQ(layout.state_checksums(), next);
  EXPECT_EQ(layout.scratch_checksums(), next_gradient);
  EXPECT_EQ(layout.checksum_count(BlockId{0}, Section::low), 0u);
  EXPECT_EQ(layout.checksum_count(BlockId{3}, Section::low), 1u);
  EXPECT_EQ(layout.checksum_count(BlockId{4}, Section::low), 1u);
  EXPECT_EQ(layout.checksum_count(BlockId{5}, Section::low), 2u);
}

TEST(StateLayout, WhereGradientsWaitDoesNotMoveTheState) {
  const ModelSpec model = test::model_of_edges();
  auto some = gradients(model.blocks.size(), std::nullopt);
  some[4] = DType::bf16;
  const StateLayout none(model), all(model, gradients(model.blocks.size(), DType::f32)), one(model, some);
  EXPECT_EQ(none.fingerprint(), all.fingerprint());
  EXPECT_EQ(none.state_bytes(), all.state_bytes());
  EXPECT_EQ(none.scratch_bytes(), 0u);
  EXPECT_EQ(one.scratch_bytes(), size_t{1} << 20);
  EXPECT_GT(all.scratch_bytes(), one.scratch_bytes());
}

TEST(StateLayout, AnythingPersistedChangesTheFingerprint) {
  const ModelSpec model = test::model_of_edges();
  const uint64_t fingerprint = StateLayout(model).fingerprint();
  ModelSpec renamed = model, frozen = model, transposed = model, moved = model, other_dtype = model;
  renamed.tensors[1].name += "x";
  frozen.tensors[1].trainable = false;
  std::swap(transposed.tensors[1].rows, transposed.tensors[1].cols);
  transposed.blocks[2].parts[0].row_end = transposed.tensors[1].rows;
  std::swap(moved.blocks[0], moved.blocks[1]);
  other_dtype.tensors[0].storage_dtype = DType::f32;
  for (const ModelSpec& other : {renamed, frozen, transposed, moved, other_dtype})
    EXPECT_NE(StateLayout(other).fingerprint(), fingerprint);
  EXPECT_EQ(StateLayout(test::model_of_edges()).fingerprint(), fingerprint);
  std::set<uint64_t> by_format;
  for (const cpu_optim::StateFormat format : cpu_optim::kStateFormats)
    by_format.insert(StateLayout(with_format(ModelSpec{}, format)).fingerprint());
  EXPECT_EQ(by_format.size(), cpu_optim::kStateFormats.size()) << "even where every section is empty";
}

TEST(StateLayout, NamesWhoseBytesTheyAre) {
  ModelSpec model{.tensors = {{.name = "a", .rows = 2, .cols = 2048},
                              {.name = "still", .rows = 1, .cols = 8, .trainable = false},
                              {.name = "b", .rows = 1, .cols = 100}},
                  .blocks = {{.name = "layer",
                              .parts = {{TensorId{0}, 0, 2}, {TensorId{1}, 0, 1}, {TensorId{2}, 0, 1}}}}};
  const StateLayout layout(model);
  const BlockId block{0};
  EXPECT_EQ(layout.describe(block, Section::low, 0, 8192), "low halves of a");
  EXPECT_EQ(layout.describe(block, Section::low, 8190, 8194), "low halves of a (and of 1 more)");
  EXPECT_EQ(layout.describe(block, Section::first_moment, 16384, 16388), "first moments of b");
  EXPECT_EQ(layout.describe(block, Section::second_moment, 16384 + 400, 16384 + 500),
            "second moments of block layer");
  EXPECT_EQ(layout.describe(block, Section::frozen, 0, 16), "frozen weights of still");
}

TEST(StateLayout, NamesWhoseRecordsTheyAre) {
  ModelSpec model{.tensors = {{.name = "a", .rows = 2, .cols = 2048}, {.name = "b", .rows = 1, .cols = 100}},
                  .blocks = {{.name = "layer", .parts = {{TensorId{0}, 0, 2}, {TensorId{1}, 0, 1}}}},
                  .state_format = cpu_optim::StateFormat::int8};
  const StateLayout layout(model);
  EXPECT_EQ(layout.describe(BlockId{0}, Section::first_moment, 4159, 4160), "first moments of a");
  EXPECT_EQ(layout.describe(BlockId{0}, Section::first_moment, 4160, 4161), "first moments of b");
  model.state_format = cpu_optim::StateFormat::fp32;
  EXPECT_EQ(StateLayout(model).describe(BlockId{0}, Section::low, 16384, 16388), "masters of b");
}

TEST(StateLayout, AModelOfNothingHasAFile) {
  const StateLayout layout(ModelSpec{});
  EXPECT_EQ(layout.state_bytes(), kChecksumBytes);
  EXPECT_EQ(layout.state_checksums(), 0u);
}

}  // namespace
}  // namespace sluice
