#include "gpu/op_cost.h"

#include <gtest/gtest.h>
#include <memory>
#include <vector>

namespace sluice::gpu {
namespace {

View f32(int64_t rows, int64_t cols) {
  return View(nullptr, DType::f32, rows, cols);
}
View bf16(int64_t rows, int64_t cols) {
  return View(nullptr, DType::bf16, rows, cols);
}
View i32(int64_t rows, int64_t cols) {
  return View(nullptr, DType::i32, rows, cols);
}
PackedWeight packed(DType dtype, int64_t rows, int64_t cols, WeightLayout layout = WeightLayout::forward) {
  return {.size_bytes = 999'999, .dtype = dtype, .rows = rows, .cols = cols, .layout = layout};
}

// Flops and bytes by hand: T = 10 tokens, C = 8 channels and the like.
void expect_cost(const Op& op, double flops, double bytes, DType rate = DType::f32) {
  const OpCost known = cost(op);
  EXPECT_EQ(known.flops, flops) << name(op);
  EXPECT_EQ(known.bytes, bytes) << name(op);
  EXPECT_EQ(known.rate, rate) << name(op);
}

TEST(OpCost, Norms) {
  // x and y 160 bytes each, weight 16, rstd 40.
  const RmsNormForward forward{.x = bf16(10, 8), .weight = bf16(1, 8), .y = bf16(10, 8), .rstd = f32(10, 1)};
  expect_cost(forward, 4 * 80, 160 + 16 + 160 + 40);
  RmsNormBackward backward{
      .dy = bf16(10, 8), .x = bf16(10, 8), .weight = bf16(1, 8), .rstd = f32(10, 1), .dx = bf16(10, 8)};
  expect_cost(backward, 7 * 80, 3 * 160 + 16 + 40);
  backward.addend = bf16(10, 8);
  backward.dweight = f32(1, 8);
  expect_cost(backward, 10 * 80, 4 * 160 + 16 + 40 + 32);
  backward.accumulate = true;
  expect_cost(backward, 10 * 80, 4 * 160 + 16 + 40 + 64);
}

TEST(OpCost, Linear) {
  // T = 10, K = 8, N = 6: 2 * 10 * 8 * 6 = 960. In bf16 x has 160 bytes, W 96, y 120.
  LinearForward forward{.x = bf16(10, 8), .weight = packed(DType::bf16, 6, 8), .y = bf16(10, 6)};
  expect_cost(forward, 960, 160 + 96 + 120, DType::bf16);
  forward.addend = bf16(10, 6);
  expect_cost(forward, 960 + 60, 160 + 96 + 120 + 120, DType::bf16);
  expect_cost(LinearForward{.x = f32(10, 8), .weight = packed(DType::f32, 6, 8), .y = f32(10, 6)}, 960,
              320 + 192 + 240, DType::f32);

  LinearBackwardInput input{
      .dy = bf16(10, 6), .weight = packed(DType::bf16, 6, 8, WeightLayout::backward), .dx = f32(10, 8)};
  expect_cost(input, 960, 120 + 96 + 320, DType::bf16);
  input.accumulate = true;
  expect_cost(input, 960, 120 + 96 + 640, DType::bf16);

  LinearBackwardWeight weight{.dy = bf16(10, 6), .x = bf16(10, 8), .dw = f32(6, 8)};
  expect_cost(weight, 960, 120 + 160 + 192, DType::bf16);
  weight.accumulate = true;
  expect_cost(weight, 960, 120 + 160 + 384, DType::bf16);

  // Split masters: 2 + 2 bytes in, 4 out; the other source has its high half only.
  expect_cost(LinearPack{.sources = {{bf16(4, 8), View(nullptr, DType::i16, 4, 8)}, {bf16(2, 8), {}}},
                         .packed = packed(DType::f32, 6, 8)},
              0, 64 + 64 + 32 + 192);
}

TEST(OpCost, Attention) {
  // Two documents of 3 and 2 tokens, 2 heads of 4 channels over 1 key head: 6 + 3 causal pairs.
  const auto segments = std::make_shared<const std::vector<AttentionSegment>>(
      std::vector<AttentionSegment>{{0, 3, 0, 3}, {3, 2, 3, 2}});
  const AttentionShape shape{.head_count = 2, .key_value_head_count = 1, .head_dim = 4};
  const View q = bf16(5, 8), k = bf16(5, 4), lse = f32(5, 2);  // 80, 40 and 40 bytes
  expect_cost(
      AttentionForward{.shape = shape, .segments = segments, .q = q, .k = k, .v = k, .o = q, .lse = lse},
      2 * 2 * 9 * 8, 80 + 40 + 40 + 80 + 40, DType::bf16);
  expect_cost(AttentionBackward{.shape = shape,
                                .segments = segments,
                                .q = q,
                                .k = k,
                                .v = k,
                                .o = q,
                                .lse = lse,
                                .d_o = q,
                                .dq = q,
                                .dk = k,
                                .dv = k},
              2 * 5 * 9 * 8, 4 * 80 + 4 * 40 + 40, DType::bf16);
  // 10 rows of 2 heads of 4: positions 40 bytes, cos and sin 2 fp32 a row each.
  expect_cost(
      Rope{.x = bf16(10, 8), .positions = i32(10, 1), .cos = f32(99, 2), .sin = f32(99, 2), .head_dim = 4},
      3 * 80, 2 * 160 + 40 + 2 * 80);
}

TEST(OpCost, Rows) {
  expect_cost(GatherRows{.table = f32(99, 8), .index = i32(10, 1), .y = f32(10, 8)}, 0, 40 + 640);
  expect_cost(ScatterRows{.x = bf16(10, 8), .index = i32(10, 1), .y = bf16(99, 8)}, 0, 40 + 320);
  EmbeddingBackward embedding{
      .dy = bf16(10, 8), .order = i32(7, 1), .begin = i32(5, 1), .d_rows = f32(4, 8)};  // 7 tokens of 10
  expect_cost(embedding, 56, 28 + 20 + 112 + 128);
  embedding.accumulate = true;
  expect_cost(embedding, 56, 28 + 20 + 112 + 256);
  expect_cost(SwigluForward{.gate_up = bf16(10, 8), .y = bf16(10, 4)}, 5 * 40, 160 + 80);
  SwigluBackward swiglu{.gate_up = bf16(10, 8), .dy = bf16(10, 4), .d_gate_up = bf16(10, 8)};
  expect_cost(swiglu, 12 * 40, 160 + 80 + 160);
  swiglu.y = bf16(10, 4);
  expect_cost(swiglu, 13 * 40, 160 + 80 + 160 + 80);
}

TEST(OpCost, Loss) {
  const View logits = f32(10, 20), column = f32(10, 1), targets = i32(10, 1);  // 800, 40 and 40 bytes
  LogSumExpUpdate update{
      .logits = logits, .targets = targets, .max = column, .sum = column, .target_logit = column};
  expect_cost(update, 4 * 200, 800 + 40 + 3 * 80);
  update.first = true;
  expect_cost(update, 4 * 200, 800 + 40 + 3 * 40);
  expect_cost(LogSumExpUpdate{.logits = logits, .max = column, .sum = column}, 4 * 200, 800 + 2 * 80);
  expect_cost(TokenLoss{column, column, column, targets, column, column}, 40, 6 * 40);
  expect_cost(CrossEntropyBackward{.logits = logits,
                                   .targets = targets,
                                   .weights = column,
                                   .max = column,
                                   .sum = column,
                                   .d_logits = bf16(10, 20)},
              4 * 200, 800 + 4 * 40 + 400);
  ArgMaxUpdate arg_max{.logits = logits, .max = column, .index = targets};
  expect_cost(arg_max, 200, 800 + 2 * 80);
  arg_max.first = true;
  expect_cost(arg_max, 200, 800 + 2 * 40);
}

TEST(OpCost, Elementwise) {
  expect_cost(Cast{f32(10, 8), bf16(10, 8)}, 0, 320 + 160);
  expect_cost(Add{f32(10, 8), f32(10, 8), f32(10, 8)}, 80, 3 * 320);
  expect_cost(Scale{bf16(10, 8), 2}, 80, 320);
  expect_cost(Fill{bf16(10, 8), 0}, 0, 160);
  expect_cost(JoinSplit{bf16(10, 8), View(nullptr, DType::i16, 10, 8), f32(10, 8)}, 0, 160 + 160 + 320);
}

TEST(OpCost, GapsBetweenRowsAreNotMoved) {
  const View wide(nullptr, DType::f32, 10, 8, 1000);
  expect_cost(Scale{wide, 2}, 80, 640);
}

}  // namespace
}  // namespace sluice::gpu
