#include "gpu/reference/reference_ops.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/reference/reference.h"
#include "tests/support/matrix.h"

// The oracle, on numbers that can be checked by hand.
namespace sluice::test {
namespace {

using gpu::reference::run;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::Pointwise;

std::vector<double> elements(const Matrix& matrix) {
  std::vector<double> values;
  for (int64_t row = 0; row < matrix.view().rows; ++row)
    for (int64_t col = 0; col < matrix.view().cols; ++col) values.push_back(matrix.at(row, col));
  return values;
}

constexpr DType kF32 = DType::f32;
constexpr DType kBf16 = DType::bf16;

TEST(Reference, RmsNorm) {
  const Matrix x = matrix_of(kF32, 2, 2, {3, 4, 6, 8});  // mean squares 12.5 and 50
  const Matrix weight = matrix_of(kF32, 1, 2, {2, 10});
  Matrix y(kF32, 2, 2), rstd(kF32, 2, 1);
  run(gpu::RmsNormForward{x.view(), weight.view(), y.view(), rstd.view(), 3.5f});
  EXPECT_THAT(elements(y),
              Pointwise(DoubleNear(1e-6), {6 / 4.0, 40 / 4.0, 12 / std::sqrt(53.5), 80 / std::sqrt(53.5)}));
  EXPECT_THAT(elements(rstd), Pointwise(DoubleNear(1e-7), {0.25, 1 / std::sqrt(53.5)}));
}

// As in Hugging Face: 1/3 is rounded to bf16 (0.333984375) before the product with 1.0625, which is rounded
// again. With one rounding it would be 0.353515625.
TEST(Reference, RmsNormRoundsTheNormalFirst) {
  const Matrix x = matrix_of(kBf16, 1, 1, {1}), weight = matrix_of(kBf16, 1, 1, {1.0625});
  Matrix y(kBf16, 1, 1);
  run(gpu::RmsNormForward{x.view(), weight.view(), y.view(), {}, 8});
  EXPECT_EQ(y.at(0, 0), 0.35546875);
}

TEST(Reference, LinearAgainstAWrittenOutProduct) {
  const Matrix top = matrix_of(kF32, 1, 3, {1, 2, 3});
  const Matrix high = matrix_of(kBf16, 1, 3, {4, 5, 6});
  const Matrix low = matrix_of(DType::i16, 1, 3, {0, 1, -1});
  for (const gpu::WeightLayout layout : {gpu::WeightLayout::forward, gpu::WeightLayout::backward}) {
    Matrix packed(kF32, 2, 3);
    EXPECT_EQ(gpu::reference::packed_bytes(2, 3, kF32, layout), 24u);
    const gpu::PackedWeight weight{packed.view().data, 24, kF32, 2, 3, layout};
    run(gpu::LinearPack{{{top.view(), {}}, {high.view(), low.view()}}, weight});
    EXPECT_THAT(elements(packed),
                ElementsAre(1, 2, 3, 4, 5 + 0x1p-21, 6 - 0x1p-21));  // one unit in the last place
    packed.set(1, 1, 5);
    packed.set(1, 2, 6);
    if (layout == gpu::WeightLayout::forward) {
      const Matrix x = matrix_of(kF32, 2, 3, {1, 0, -1, 2, 1, 0});
      Matrix y = matrix_of(kF32, 2, 2, {100, 200, 300, 400});
      run(gpu::LinearForward{x.view(), weight, y.view(), y.view()});
      EXPECT_THAT(elements(y), ElementsAre(98, 198, 304, 413));
    } else {
      const Matrix dy = matrix_of(kF32, 1, 2, {10, -1});
      Matrix dx = matrix_of(kF32, 1, 3, {1, 1, 1});
      run(gpu::LinearBackwardInput{dy.view(), weight, dx.view(), true});
      EXPECT_THAT(elements(dx), ElementsAre(7, 16, 25));
    }
  }
}

TEST(Reference, LinearBackwardWeight) {
  const Matrix dy = matrix_of(kF32, 2, 2, {1, 2, 3, 4});
  const Matrix x = matrix_of(kF32, 2, 1, {10, 100});
  Matrix dw = matrix_of(kF32, 2, 1, {7, 7});
  run(gpu::LinearBackwardWeight{dy.view(), x.view(), dw.view(), false});
  EXPECT_THAT(elements(dw), ElementsAre(310, 420));
  run(gpu::LinearBackwardWeight{dy.view(), x.view(), dw.view(), true});
  EXPECT_THAT(elements(dw), ElementsAre(620, 840));
}

// One head of one channel. Scores of query 1: 0 and ln 3, so it takes 1/4 of the first value and 3/4 of the
// second.
TEST(Reference, AttentionIsCausalAndClearsUncoveredRows) {
  const auto segments =
      std::make_shared<const std::vector<gpu::AttentionSegment>>(1, gpu::AttentionSegment{0, 2, 1, 2});
  const Matrix q = matrix_of(kF32, 3, 1, {5, 1, 9});
  const Matrix k = matrix_of(kF32, 3, 1, {-7, 0, std::log(3.0)});
  const Matrix v = matrix_of(kF32, 3, 1, {1000, 4, 8});
  Matrix o = matrix_of(kF32, 3, 1, {-1, -1, -1}), lse = matrix_of(kF32, 3, 1, {-1, -1, -1});
  run(gpu::AttentionForward{{1, 1, 1, 1.0f}, segments, q.view(), k.view(), v.view(), o.view(), lse.view()});
  EXPECT_THAT(elements(o), Pointwise(DoubleNear(1e-6), {4.0, 7.0, 0.0}));
  EXPECT_THAT(elements(lse), Pointwise(DoubleNear(1e-6), {0.0, std::log(4.0), 0.0}));
}

// Generation: one query at position 2 of a cache; heads 0, 1 share key head 0, heads 2, 3 key head 1.
TEST(Reference, AttentionSharesKeyHeadsAndSeesTheCache) {
  const auto segments =
      std::make_shared<const std::vector<gpu::AttentionSegment>>(1, gpu::AttentionSegment{0, 1, 0, 3});
  const Matrix q(kF32, 1, 4);  // zero: equal shares
  const Matrix k = matrix_of(kF32, 3, 2, {1, 2, 3, 4, 5, 6});
  const Matrix v = matrix_of(kF32, 3, 2, {3, 30, 6, 60, 9, 90});
  Matrix o(kF32, 1, 4);
  run(gpu::AttentionForward{{4, 2, 1, 1.0f}, segments, q.view(), k.view(), v.view(), o.view(), {}});
  EXPECT_THAT(elements(o), Pointwise(DoubleNear(1e-5), {6.0, 6.0, 60.0, 60.0}));
}

TEST(Reference, RopeRotatesHalvesAndBack) {
  Matrix x = matrix_of(kF32, 1, 8, {1, 2, 3, 4, 0, 1, 0, 0});  // two heads of four
  const Matrix positions = index_column({1});
  const Matrix cos = matrix_of(kF32, 2, 2, {1, 1, 0, 0.6});
  const Matrix sin = matrix_of(kF32, 2, 2, {0, 0, 1, 0.8});
  run(gpu::Rope{x.view(), positions.view(), cos.view(), sin.view(), 4, false});
  EXPECT_THAT(elements(x),
              Pointwise(DoubleNear(1e-6), {-3.0, 1.2 - 3.2, 1.0, 2.4 + 1.6, 0.0, 0.6, 0.0, 0.8}));
  run(gpu::Rope{x.view(), positions.view(), cos.view(), sin.view(), 4, true});
  EXPECT_THAT(elements(x), Pointwise(DoubleNear(1e-6), {1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 0.0, 0.0}));
}

TEST(Reference, GatherScatterAndEmbeddingGradient) {
  const Matrix table = matrix_of(kBf16, 3, 2, {1, 2, 3, 4, 5, 6});
  const Matrix index = index_column({2, 0});
  Matrix y(kBf16, 2, 2);
  run(gpu::GatherRows{table.view(), index.view(), y.view()});
  EXPECT_THAT(elements(y), ElementsAre(5, 6, 1, 2));
  Matrix cache = matrix_of(kBf16, 3, 2, {9, 9, 9, 9, 9, 9});
  run(gpu::ScatterRows{y.view(), index.view(), cache.view()});
  EXPECT_THAT(elements(cache), ElementsAre(1, 2, 9, 9, 5, 6));
  // Row 0 has tokens 2 and 0, row 1 none, row 2 token 1.
  const Matrix dy = matrix_of(kF32, 3, 1, {1, 10, 100});
  const Matrix order = index_column({2, 0, 1}), begin = index_column({0, 2, 2, 3});
  Matrix d_rows = matrix_of(kF32, 3, 1, {7, 7, 7});
  run(gpu::EmbeddingBackward{dy.view(), order.view(), begin.view(), d_rows.view(), true});
  EXPECT_THAT(elements(d_rows), ElementsAre(108, 7, 17));
  run(gpu::EmbeddingBackward{dy.view(), order.view(), begin.view(), d_rows.view(), false});
  EXPECT_THAT(elements(d_rows), ElementsAre(101, 0, 10));
}

TEST(Reference, Swiglu) {
  const double gate = std::log(3.0);  // sigmoid 3/4
  const Matrix gate_up = matrix_of(kF32, 1, 2, {gate, 8});
  Matrix y(kF32, 1, 1);
  run(gpu::SwigluForward{gate_up.view(), y.view()});
  EXPECT_NEAR(y.at(0, 0), gate * 6, 1e-6);
  const Matrix dy = matrix_of(kF32, 1, 1, {2});
  Matrix d_gate_up(kF32, 1, 2), again(kF32, 1, 1);
  run(gpu::SwigluBackward{gate_up.view(), dy.view(), d_gate_up.view(), again.view()});
  EXPECT_NEAR(d_gate_up.at(0, 0), 2 * 8 * 0.75 * (1 + gate * 0.25), 1e-5);
  EXPECT_NEAR(d_gate_up.at(0, 1), 2 * gate * 0.75, 1e-6);
  EXPECT_EQ(again.at(0, 0), y.at(0, 0));
}

// Logits ln 1, ln 2 | ln 5 in two pieces: probabilities 1/8, 2/8, 5/8.
TEST(Reference, CrossEntropyOverPieces) {
  const Matrix first = matrix_of(kF32, 2, 2, {0, std::log(2.0), 0, std::log(2.0)});
  const Matrix second = matrix_of(kF32, 2, 1, {std::log(5.0), std::log(5.0)});
  const Matrix targets = index_column({1, -1}), weights = matrix_of(kF32, 2, 1, {3, 3});
  Matrix max(kF32, 2, 1), sum(kF32, 2, 1), target(kF32, 2, 1), loss(kF32, 2, 1), d_logits(kF32, 2, 2);
  run(gpu::LogSumExpUpdate{first.view(), targets.view(), max.view(), sum.view(), target.view(), 0, true});
  run(gpu::LogSumExpUpdate{second.view(), targets.view(), max.view(), sum.view(), target.view(), 2, false});
  EXPECT_THAT(elements(max), Pointwise(DoubleNear(1e-6), {std::log(5.0), std::log(5.0)}));
  EXPECT_THAT(elements(sum), Pointwise(DoubleNear(1e-6), {1.6, 1.6}));
  run(gpu::TokenLoss{max.view(), sum.view(), target.view(), targets.view(), weights.view(), loss.view()});
  EXPECT_THAT(elements(loss), Pointwise(DoubleNear(1e-6), {3 * std::log(4.0), 0.0}));
  run(gpu::CrossEntropyBackward{first.view(), targets.view(), weights.view(), max.view(), sum.view(),
                                d_logits.view(), 0, 0.5f});
  EXPECT_THAT(elements(d_logits), Pointwise(DoubleNear(1e-6), {1.5 / 8, -1.5 * 6 / 8, 0.0, 0.0}));
}

TEST(Reference, ArgMaxTakesTheLowestOfEquals) {
  const Matrix first = matrix_of(kF32, 1, 3, {-5, -2, -2}), second = matrix_of(kF32, 1, 2, {-2, -9});
  Matrix max(kF32, 1, 1), index(DType::i32, 1, 1);
  run(gpu::ArgMaxUpdate{first.view(), max.view(), index.view(), 10, true});
  run(gpu::ArgMaxUpdate{second.view(), max.view(), index.view(), 13, false});
  EXPECT_EQ(index.at(0, 0), 11);
  EXPECT_EQ(max.at(0, 0), -2);
}

TEST(Reference, ElementwiseRoundsToNearestEven) {
  const Matrix x = matrix_of(kF32, 1, 3, {1 + 0x1p-8, 1 + 3 * 0x1p-8, -2.5});  // ties between bf16 numbers
  Matrix y(kBf16, 1, 3);
  run(gpu::Cast{x.view(), y.view()});
  EXPECT_THAT(elements(y), ElementsAre(1, 1 + 4 * 0x1p-8, -2.5));
  run(gpu::Add{y.view(), y.view(), y.view()});
  EXPECT_THAT(elements(y), ElementsAre(2, 2 + 8 * 0x1p-8, -5));
  run(gpu::Scale{y.view(), 0.5f});
  EXPECT_THAT(elements(y), ElementsAre(1, 1 + 4 * 0x1p-8, -2.5));
  run(gpu::Fill{y.view(), 3});
  EXPECT_THAT(elements(y), ElementsAre(3, 3, 3));
  const Matrix high = matrix_of(kBf16, 1, 2, {1, 1}), low = matrix_of(DType::i16, 1, 2, {-32768, 1});
  Matrix joined(kF32, 1, 2);
  run(gpu::JoinSplit{high.view(), low.view(), joined.view()});
  EXPECT_THAT(elements(joined), ElementsAre(1 - 0x1p-9, 1 + 0x1p-23));
}

class NamedStream final : public gpu::Stream {
 public:
  NamedStream() : Stream(gpu::StreamKind::compute, "s") {}
  gpu::Event record() override { throw Error(ErrorKind::runtime, "nothing to record"); }
  void wait(const gpu::Event&) override {}
  void run(gpu::Task) override {}
};

TEST(ReferenceOps, BecomeTasksThatNameTheirMemory) {
  std::vector<gpu::Task> tasks;
  gpu::ReferenceOps ops([&](gpu::Stream&, gpu::Task task) { tasks.push_back(std::move(task)); });
  NamedStream stream;
  Matrix x = matrix_of(kF32, 1, 2, {1, 2});
  std::byte workspace[8];
  ops.submit(stream, gpu::Scale{x.view(), 3}, {workspace, 8});
  ASSERT_EQ(tasks.size(), 1u);
  EXPECT_EQ(tasks[0].name, "scale");
  ASSERT_EQ(tasks[0].accesses.size(), 2u);
  EXPECT_EQ(tasks[0].accesses[0].begin, x.view().data);
  EXPECT_TRUE(tasks[0].accesses[0].write);
  EXPECT_EQ(tasks[0].accesses[1].begin, workspace);
  EXPECT_THAT(elements(x), ElementsAre(1, 2)) << "ran before its turn";
  tasks[0].body();
  EXPECT_THAT(elements(x), ElementsAre(3, 6));
}

TEST(ReferenceOpsDeathTest, RefuseShapesThatDoNotFit) {
  gpu::ReferenceOps ops([](gpu::Stream&, gpu::Task) {});
  NamedStream stream;
  const Matrix a(kF32, 2, 3), narrow(kF32, 2, 2), b(kBf16, 2, 3);
  EXPECT_DEATH(ops.submit(stream, gpu::Add{a.view(), narrow.view(), a.view()}, {}),
               "add: b has the wrong shape");
  EXPECT_DEATH(ops.submit(stream, gpu::Add{a.view(), b.view(), a.view()}, {}), "add: b has the wrong dtype");
  EXPECT_DEATH(ops.submit(stream, gpu::Add{a.view(), {}, a.view()}, {}), "add: b");
  const gpu::View overlapping(a.view().data, kF32, 2, 3, 2);
  EXPECT_DEATH(ops.submit(stream, gpu::Scale{overlapping, 2}, {}), "rows that overlap");
}

}  // namespace
}  // namespace sluice::test
