#pragma once

#include "tests/contract/ops_contract.h"

// The head's loss over pieces of the vocabulary: gpu/ops/loss.h.
namespace sluice::test {

class LossOpsContract : public OpsContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LossOpsContract);

inline constexpr double kLogitRange = 20;

// Logits of three pieces, targets in any of them or none, and what running over all pieces gives.
struct LossCase {
  LossCase(Random& random, int64_t rows, int64_t piece_cols) : piece(piece_cols) {
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(3 * piece + 1)) - 1;
    trial.add("logits 0", random_matrix(random, DType::f32, rows, piece, -kLogitRange / 2, kLogitRange / 2));
    trial.add("logits 1", random_matrix(random, DType::f32, rows, piece, -kLogitRange / 2, kLogitRange / 2));
    trial.add("logits 2", random_matrix(random, DType::f32, rows, piece, -kLogitRange / 2, kLogitRange / 2));
    trial.add("targets", index_column(ids));
    trial.add("max", random_matrix(random, DType::f32, rows, 1), {0, 1e-300});
    // exp of an argument that was rounded: its error is that of the argument, up to the range times u.
    const double steps = sum_error(3 * piece) / kU32 + 3 * (kLogitRange + 6);
    trial.add("sum", random_matrix(random, DType::f32, rows, 1), after_steps(DType::f32, steps));
    trial.add("target_logit", random_matrix(random, DType::f32, rows, 1), {0, 1e-300});
  }

  std::vector<gpu::Op> updates(std::span<const gpu::View> views) const {
    std::vector<gpu::Op> ops;
    for (int64_t i = 0; i < 3; ++i)
      ops.push_back(gpu::LogSumExpUpdate{views[static_cast<size_t>(i)], views[3], views[4], views[5],
                                         views[6], i * piece, i == 0});
    return ops;
  }

  int64_t piece;
  Trial trial;
};

inline std::vector<Size> loss_sizes() {
  return {{0, 8},   {1, 1},  {3, 2},  {3, 15},   {2, 16},  {3, 17},
          {65, 31}, {3, 32}, {3, 33}, {64, 100}, {3, 1025}};
}

TEST_P(LossOpsContract, LogSumExpAndTokenLoss) {
  for (Size size : loss_sizes()) {
    SCOPED_TRACE(testing::Message() << size.rows << " x 3 pieces of " << size.cols);
    LossCase loss(random, size.rows, size.cols);
    const size_t weights = loss.trial.add("weights", random_matrix(random, DType::f32, size.rows, 1, 0, 1));
    // max + log(sum) - logit: terms up to the range, and log of a sum whose relative error becomes absolute.
    const double steps = sum_error(3 * size.cols) / kU32 + 3 * (kLogitRange + 6);
    loss.trial.add("loss", random_matrix(random, DType::f32, size.rows, 1),
                   {neighbour(DType::f32), (steps + 4 * kLogitRange) * kU32});
    loss.trial.program = [&](auto views, PackedBuffers&) {
      std::vector<gpu::Op> ops = loss.updates(views);
      ops.push_back(
          gpu::TokenLoss{views[4], views[5], views[6], views[3], views[weights], views[weights + 1]});
      return ops;
    };
    expect(loss.trial);
  }
}

TEST_P(LossOpsContract, LogSumExpWithoutTargets) {
  LossCase loss(random, 5, 33);
  for (size_t kept : {3, 6}) loss.trial.operands[kept].tolerance = {};
  loss.trial.program = [&](auto views, PackedBuffers&) {
    std::vector<gpu::View> without(views.begin(), views.end());
    without[3] = without[6] = {};
    return loss.updates(without);
  };
  expect(loss.trial);
}

TEST_P(LossOpsContract, CrossEntropyBackward) {
  for (DType dtype : kComputeTypes) {
    for (Size size : loss_sizes()) {
      for (bool in_place : {false, true}) {
        if (in_place && dtype != DType::f32) continue;
        SCOPED_TRACE(testing::Message() << name(dtype) << " " << size.rows << " x " << size.cols);
        LossCase loss(random, size.rows, size.cols);
        const Tolerance tolerance =
            after_cancelling(dtype, sum_error(3 * size.cols) / kU32 + 4 * (kLogitRange + 6), 0.5);
        const size_t weights =
            loss.trial.add("weights", random_matrix(random, DType::f32, size.rows, 1, 0, 1));
        loss.trial.add("d_logits", random_matrix(random, dtype, size.rows, size.cols),
                       in_place ? Tolerance() : tolerance);
        if (in_place) loss.trial.operands[1].tolerance = tolerance;
        loss.trial.program = [&](auto views, PackedBuffers&) {
          std::vector<gpu::Op> ops = loss.updates(views);
          ops.push_back(gpu::CrossEntropyBackward{views[1], views[3], views[weights], views[4], views[5],
                                                  views[in_place ? 1 : weights + 1], size.cols, 0.5f});
          return ops;
        };
        expect(loss.trial);
      }
    }
  }
}

TEST_P(LossOpsContract, ArgMaxTakesTheLowestOfEquals) {
  for (Size size : loss_sizes()) {
    SCOPED_TRACE(testing::Message() << size.rows << " x " << size.cols);
    Trial trial;
    for (const char* piece : {"logits 0", "logits 1"}) {
      Matrix logits(DType::f32, size.rows,
                    size.cols);  // few different values: equals within and across pieces
      for (int64_t row = 0; row < size.rows; ++row)
        for (int64_t col = 0; col < size.cols; ++col)
          logits.set(row, col, static_cast<double>(random() % 5) - 7);
      trial.add(piece, std::move(logits));
    }
    trial.add("max", random_matrix(random, DType::f32, size.rows, 1), {0, 1e-300});
    trial.add("index", Matrix(DType::i32, size.rows, 1), {0, 1e-300});
    trial.program = [&](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
      return {gpu::ArgMaxUpdate{views[1], views[2], views[3], 500, true},
              gpu::ArgMaxUpdate{views[0], views[2], views[3], 100, false}};
    };
    expect(trial);
  }
}

// A NaN or an infinity anywhere in a row must reach its loss, and no other row's.
TEST_P(LossOpsContract, NotANumberReachesTheLoss) {
  for (double bad : {std::nan(""), HUGE_VAL}) {
    for (int64_t col : {0, 15, 16, 31, 32, 40}) {
      Matrix logits = random_matrix(random, DType::f32, 3, 41);
      logits.set(1, col, bad);
      Matrix targets = index_column({2, 3, 4});
      Matrix max(DType::f32, 3, 1), sum(DType::f32, 3, 1), target(DType::f32, 3, 1), loss(DType::f32, 3, 1);
      Matrix weights = matrix_of(DType::f32, 3, 1, {1, 1, 1});
      GetParam().runs.front()(gpu::LogSumExpUpdate{logits.view(), targets.view(), max.view(), sum.view(),
                                                   target.view(), 0, true});
      GetParam().runs.front()(
          gpu::TokenLoss{max.view(), sum.view(), target.view(), targets.view(), weights.view(), loss.view()});
      EXPECT_TRUE(std::isfinite(loss.at(0, 0)) && std::isfinite(loss.at(2, 0)));
      EXPECT_TRUE(std::isnan(loss.at(1, 0))) << bad << " at " << col;
    }
  }
}

}  // namespace sluice::test
