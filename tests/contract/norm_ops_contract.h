#pragma once

#include "tests/contract/ops_contract.h"

// RMSNorm and the rotation: gpu/ops/norm.h, Rope of gpu/ops/attention.h.
namespace sluice::test {

class NormOpsContract : public OpsContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NormOpsContract);

TEST_P(NormOpsContract, RmsNormForward) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    for (bool wants_rstd : {true, false}) {
      if (cols == 0 && wants_rstd) continue;  // a mean over nothing
      Trial trial;
      trial.add("x", random_matrix(random, dtype, rows, cols, -2, 2));
      trial.add("weight", random_matrix(random, dtype, 1, cols, -2, 2));
      // The normal may round to its neighbour, and then the product as well; the sum has only positive terms.
      const double steps = sum_error(cols) / kU32 + 6;
      trial.add("y", Matrix(dtype, rows, cols), {steps * kU32 + 2 * neighbour(dtype), kSmallest});
      if (wants_rstd) trial.add("rstd", Matrix(DType::f32, rows, 1), after_steps(DType::f32, steps));
      trial.program = [wants_rstd](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {
            gpu::RmsNormForward{views[0], views[1], views[2], wants_rstd ? views[3] : gpu::View(), 1e-5f}};
      };
      expect(trial);
    }
  });
}

// 1/3 is rounded to bf16 (0.333984375) before the product with 1.0625: with one rounding it would be
// 0.353515625.
TEST_P(NormOpsContract, RmsNormRoundsTheNormalFirst) {
  const Matrix x = matrix_of(DType::bf16, 1, 1, {1}), weight = matrix_of(DType::bf16, 1, 1, {1.0625});
  Matrix y(DType::bf16, 1, 1);
  GetParam().runs.front()(gpu::RmsNormForward{x.view(), weight.view(), y.view(), {}, 8});
  EXPECT_EQ(y.at(0, 0), 0.35546875);
}

// Which operand dx overwrites.
enum class Alias { none, dy, addend };

struct NormBackwardCase {
  Alias alias = Alias::none;
  bool addend = true;
  bool dweight = true;
  bool accumulate = false;
};

// |x| in [0.5, 2], |dy| <= 1, |weight| <= 2, so rstd <= 2, |x rstd| <= 4, and the mean of |dy weight x rstd|
// <= 2: dx = addend + rstd (dy weight - x rstd mean) is made of terms up to 2 (2 + 4 * 2) + 1 = 21.
inline Trial norm_backward_trial(Random& random, DType dtype, int64_t rows, int64_t cols,
                                 const NormBackwardCase& given) {
  const Tolerance dx_tolerance = after_cancelling(dtype, sum_error(cols) / kU32 + 8, 21);
  const auto when = [&](Alias alias) { return given.alias == alias ? dx_tolerance : Tolerance(); };
  Matrix x = signed_matrix(random, dtype, rows, cols, 0.5, 2);
  Matrix rstd(DType::f32, rows, 1);
  for (int64_t t = 0; t < rows; ++t) {
    double squares = 0;
    for (int64_t c = 0; c < cols; ++c) squares += x.at(t, c) * x.at(t, c);
    rstd.set(t, 0, cols == 0 ? 1 : 1 / std::sqrt(squares / static_cast<double>(cols)));
  }
  Trial trial;
  trial.add("dy", random_matrix(random, dtype, rows, cols), when(Alias::dy));
  trial.add("x", std::move(x));
  trial.add("weight", random_matrix(random, dtype, 1, cols, -2, 2));
  trial.add("rstd", std::move(rstd));
  trial.add("addend", random_matrix(random, dtype, rows, cols), when(Alias::addend));
  trial.add("dx", random_matrix(random, dtype, rows, cols), when(Alias::none));
  Tolerance dweight_tolerance = after_sum(DType::f32, rows + 1, 4);
  if (!given.dweight || (cols > 0 && rows == 0 && given.accumulate)) dweight_tolerance = {};
  trial.add("dweight", random_matrix(random, DType::f32, 1, cols), dweight_tolerance);
  trial.program = [given](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
    const size_t dx = given.alias == Alias::dy ? 0 : given.alias == Alias::addend ? 4 : 5;
    gpu::RmsNormBackward op{views[0], views[1],  views[2], views[3],
                            views[4], views[dx], views[6], given.accumulate};
    if (!given.addend) op.addend = {};
    if (!given.dweight) op.dweight = {};
    return {op};
  };
  return trial;
}

TEST_P(NormOpsContract, RmsNormBackward) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    for (NormBackwardCase given : {NormBackwardCase{}, NormBackwardCase{Alias::dy, true, true, true},
                                   NormBackwardCase{Alias::addend, true, true, false},
                                   NormBackwardCase{Alias::none, false, true, true},
                                   NormBackwardCase{Alias::none, false, false, false}})
      expect(norm_backward_trial(random, dtype, rows, cols, given));
  });
}

// The sum over rows crosses several ranges of 64.
TEST_P(NormOpsContract, RmsNormBackwardSumsManyRows) {
  for (DType dtype : kComputeTypes)
    for (int64_t rows : {127, 128, 129, 300}) expect(norm_backward_trial(random, dtype, rows, 21, {}));
}

TEST_P(NormOpsContract, Rope) {
  for (DType dtype : kComputeTypes) {
    for (int64_t head_dim : {2, 8, 10, 30, 32, 34, 64, 80, 128}) {
      for (Size size : {Size{0, 2}, {1, 1}, {3, 3}, {65, 2}}) {  // rows and heads
        for (bool inverse : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << name(dtype) << " head_dim " << head_dim << " rows " << size.rows);
          Trial trial;
          trial.add("x", random_matrix(random, dtype, size.rows, size.cols * head_dim),
                    after_cancelling(dtype, 3, 2));
          std::vector<int32_t> positions(static_cast<size_t>(size.rows));
          for (int32_t& position : positions) position = static_cast<int32_t>(random() % 7);
          trial.add("positions", index_column(positions));
          trial.add("cos", random_matrix(random, DType::f32, 7, head_dim / 2));
          trial.add("sin", random_matrix(random, DType::f32, 7, head_dim / 2));
          trial.program = [=](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
            return {gpu::Rope{views[0], views[1], views[2], views[3], head_dim, inverse}};
          };
          expect(trial);
        }
      }
    }
  }
}

}  // namespace sluice::test
