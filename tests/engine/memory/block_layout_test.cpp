#include "engine/memory/block_layout.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

ModelSpec model() {
  return {
      .tensors =
          {{.name = "small", .rows = 3, .cols = 5, .group = 1},
           {.name = "frozen fp32", .rows = 2, .cols = 100, .storage_dtype = DType::f32, .trainable = false},
           {.name = "exact", .rows = 1, .cols = 256},
           {.name = "one more", .rows = 1, .cols = 257},
           {.name = "frozen bf16", .rows = 1, .cols = 3, .trainable = false},
           {.name = "table", .rows = 100, .cols = 8}},
      .blocks = {{.name = "first",
                  .parts = {{TensorId{0}, 0, 3},
                            {TensorId{1}, 0, 2},
                            {TensorId{2}, 0, 1},
                            {TensorId{3}, 0, 1},
                            {TensorId{4}, 0, 1},
                            {TensorId{5}, 0, 40}}},
                 {.name = "second", .parts = {{TensorId{5}, 40, 100}}},
                 {.name = "frozen only", .parts = {{TensorId{1}, 0, 2}}},
                 {.name = "empty", .parts = {}}}};
}

TEST(BlockLayout, SpansArePaddedTo256) {
  const BlockLayout layout(model(), BlockId{0});
  ASSERT_EQ(layout.parts().size(), 6u);
  EXPECT_EQ(layout.part(0).span_begin, 0);     // 15 elements -> 256
  EXPECT_EQ(layout.part(2).span_begin, 256);   // 256 -> 256
  EXPECT_EQ(layout.part(3).span_begin, 512);   // 257 -> 512
  EXPECT_EQ(layout.part(5).span_begin, 1024);  // 320 -> 512
  EXPECT_EQ(layout.logical_elements(), 1536);
  EXPECT_EQ(kSpanPadding, 256);
}

TEST(BlockLayout, FrozenPartsAreOnlyStored) {
  const BlockLayout layout(model(), BlockId{0});
  EXPECT_FALSE(layout.part(1).trainable);
  EXPECT_EQ(layout.part(1).storage_dtype, DType::f32);
  EXPECT_EQ(layout.part(1).frozen_offset, 0u);     // 800 bytes -> 1024
  EXPECT_EQ(layout.part(4).frozen_offset, 1024u);  // 6 bytes -> 512
  EXPECT_EQ(layout.part(4).storage_dtype, DType::bf16);
  EXPECT_EQ(layout.frozen_bytes(), 1536u);
}

TEST(BlockLayout, PartsCarryWhatTheirTensorsSay) {
  const BlockLayout layout(model(), BlockId{0});
  EXPECT_EQ(layout.part(0).rows, 3);
  EXPECT_EQ(layout.part(0).cols, 5);
  EXPECT_EQ(layout.part(0).element_count(), 15);
  EXPECT_EQ(layout.part(0).group, 1);
  EXPECT_EQ(layout.part(0).storage_dtype, DType::bf16) << "trainable: the high half";
  const BlockLayout second(model(), BlockId{1});
  EXPECT_EQ(second.part(0).row_begin, 40);
  EXPECT_EQ(second.part(0).rows, 60);
  EXPECT_EQ(second.part(0).tensor, TensorId{5});
  EXPECT_EQ(second.part(0).span_begin, 0);
  EXPECT_EQ(second.logical_elements(), 512);  // 480
}

TEST(BlockLayout, BytesOfAFetch) {
  const BlockLayout layout(model(), BlockId{0});
  EXPECT_EQ(layout.low_bytes(), 4096u) << "3072, padded";
  EXPECT_EQ(layout.trained_bytes(), 2 * 4096u);
  EXPECT_EQ(layout.weight_bytes(), 4096u + 4096u + 1536u);
  EXPECT_EQ(layout.moment_bytes(), 2 * 8192u) << "1536 elements, padded";
  EXPECT_EQ(layout.fetch_offset(DType::f32), 0u);
  EXPECT_EQ(layout.fetch_bytes(DType::f32), layout.weight_bytes());
  EXPECT_EQ(layout.fetch_offset(DType::bf16), 4096u) << "without the low halves";
  EXPECT_EQ(layout.fetch_bytes(DType::bf16), 4096u + 1536u);
}

TEST(BlockLayout, BytesOfEveryFormat) {
  using cpu_optim::StateFormat;
  struct Expected {
    StateFormat format;
    size_t low, moments;
  };
  // 1536 elements, each stream padded to pages.
  for (const Expected& expected : {Expected{StateFormat::split, 4096, 2 * 8192},
                                   {StateFormat::split_bf16, 4096, 2 * 4096},
                                   {StateFormat::bf16, 0, 2 * 4096},
                                   {StateFormat::int8, 0, 2 * 4096},  // 6 records of 260
                                   {StateFormat::fp32, 8192, 2 * 8192}}) {
    SCOPED_TRACE(cpu_optim::name(expected.format));
    ModelSpec with = model();
    with.state_format = expected.format;
    const BlockLayout layout(with, BlockId{0});
    EXPECT_EQ(layout.low_bytes(), expected.low);
    EXPECT_EQ(layout.trained_bytes(), expected.low + 4096);
    EXPECT_EQ(layout.weight_bytes(), expected.low + 4096 + 1536);
    EXPECT_EQ(layout.moment_bytes(), expected.moments);
    EXPECT_EQ(layout.fetch_bytes(DType::f32), layout.weight_bytes());
    EXPECT_EQ(layout.fetch_bytes(DType::bf16), 4096u + 1536u);
  }
}

TEST(BlockLayout, OfNothingTrained) {
  const BlockLayout frozen(model(), BlockId{2});
  EXPECT_EQ(frozen.logical_elements(), 0);
  EXPECT_EQ(frozen.weight_bytes(), 1024u);
  EXPECT_EQ(frozen.moment_bytes(), 0u);
  EXPECT_EQ(frozen.fetch_bytes(DType::f32), frozen.fetch_bytes(DType::bf16));
  const BlockLayout empty(model(), BlockId{3});
  EXPECT_EQ(empty.weight_bytes(), 0u);
}

TEST(BlockLayoutDeathTest, RowsLieWithinTheTensor) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  ModelSpec wrong = model();
  wrong.blocks[1].parts[0].row_end = 101;
  EXPECT_DEATH(BlockLayout(wrong, BlockId{1}), "table");
}

}  // namespace
}  // namespace sluice
