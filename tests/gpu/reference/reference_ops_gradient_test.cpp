#include <cmath>
#include <functional>
#include <gtest/gtest.h>

#include "gpu/reference/reference.h"
#include "tests/support/matrix.h"

// The reference's gradients against central differences of its forward ops: with step h the truncation error
// is of order h^2 / 6 f''' and rounding of the fp32 results adds u |f| / h. At h = 2^-7 both are below 1e-4
// of values and third derivatives around 1, and a wrong factor or a missing term is far above.
namespace sluice::test {
namespace {

using gpu::reference::run;

constexpr double kStep = 0x1p-7;
constexpr double kTolerance = 5e-4;

// Sum of y weighted by dy: its gradient by an input is what backward computes from dy.
double weighted_sum(const Matrix& y, const Matrix& dy) {
  double sum = 0;
  for (int64_t row = 0; row < y.view().rows; ++row)
    for (int64_t col = 0; col < y.view().cols; ++col) sum += y.at(row, col) * dy.at(row, col);
  return sum;
}

void expect_gradient(const char* what, Matrix& input, const Matrix& gradient,
                     const std::function<double()>& value) {
  for (int64_t row = 0; row < input.view().rows; ++row) {
    for (int64_t col = 0; col < input.view().cols; ++col) {
      const double before = input.at(row, col);
      input.set(row, col, before + kStep);
      const double above = value(), up = input.at(row, col);
      input.set(row, col, before - kStep);
      const double below = value(), down = input.at(row, col);
      input.set(row, col, before);
      EXPECT_NEAR(gradient.at(row, col), (above - below) / (up - down), kTolerance)
          << what << " " << row << " " << col;
    }
  }
}

TEST(ReferenceGradient, RmsNorm) {
  Random random(1);
  Matrix x = random_matrix(random, DType::f32, 3, 5, 1, 2), weight = random_matrix(random, DType::f32, 1, 5);
  x.set(1, 2, -1.5);
  const Matrix dy = random_matrix(random, DType::f32, 3, 5), addend = random_matrix(random, DType::f32, 3, 5);
  Matrix y(DType::f32, 3, 5), rstd(DType::f32, 3, 1), dx(DType::f32, 3, 5), dweight(DType::f32, 1, 5);
  const auto value = [&] {
    run(gpu::RmsNormForward{x.view(), weight.view(), y.view(), rstd.view(), 0.1f});
    return weighted_sum(y, dy) + weighted_sum(x, addend);
  };
  value();
  run(gpu::RmsNormBackward{dy.view(), x.view(), weight.view(), rstd.view(), addend.view(), dx.view(),
                           dweight.view(), false});
  expect_gradient("x", x, dx, value);
  expect_gradient("weight", weight, dweight, value);
}

TEST(ReferenceGradient, Swiglu) {
  Random random(2);
  Matrix gate_up = random_matrix(random, DType::f32, 2, 8, -2, 2);
  const Matrix dy = random_matrix(random, DType::f32, 2, 4);
  Matrix y(DType::f32, 2, 4), d_gate_up(DType::f32, 2, 8);
  run(gpu::SwigluBackward{gate_up.view(), dy.view(), d_gate_up.view(), {}});
  expect_gradient("gate_up", gate_up, d_gate_up, [&] {
    run(gpu::SwigluForward{gate_up.view(), y.view()});
    return weighted_sum(y, dy);
  });
}

TEST(ReferenceGradient, Rope) {
  Random random(3);
  Matrix x = random_matrix(random, DType::f32, 3, 8);
  const Matrix dy = random_matrix(random, DType::f32, 3, 8), positions = index_column({1, 0, 1});
  const Matrix cos = random_matrix(random, DType::f32, 2, 2), sin = random_matrix(random, DType::f32, 2, 2);
  Matrix dx(dy);
  run(gpu::Rope{dx.view(), positions.view(), cos.view(), sin.view(), 4, true});
  expect_gradient("x", x, dx, [&] {
    Matrix y(x);
    run(gpu::Rope{y.view(), positions.view(), cos.view(), sin.view(), 4, false});
    return weighted_sum(y, dy);
  });
}

// Two documents and a row of padding; four heads on two key heads.
TEST(ReferenceGradient, Attention) {
  Random random(4);
  const gpu::AttentionShape shape{4, 2, 3, 0.7f};
  const auto segments = std::make_shared<const std::vector<gpu::AttentionSegment>>(
      std::vector<gpu::AttentionSegment>{{0, 2, 0, 2}, {2, 4, 2, 4}});
  Matrix q = random_matrix(random, DType::f32, 7, 12), k = random_matrix(random, DType::f32, 7, 6),
         v = random_matrix(random, DType::f32, 7, 6);
  const Matrix d_o = random_matrix(random, DType::f32, 7, 12);
  Matrix o(DType::f32, 7, 12), lse(DType::f32, 7, 4);
  Matrix dq = random_matrix(random, DType::f32, 7, 12), dk = random_matrix(random, DType::f32, 7, 6),
         dv = random_matrix(random, DType::f32, 7, 6);
  const auto value = [&] {
    run(gpu::AttentionForward{shape, segments, q.view(), k.view(), v.view(), o.view(), lse.view()});
    return weighted_sum(o, d_o);
  };
  value();
  run(gpu::AttentionBackward{shape, segments, q.view(), k.view(), v.view(), o.view(), lse.view(), d_o.view(),
                             dq.view(), dk.view(), dv.view()});
  expect_gradient("q", q, dq, value);
  expect_gradient("k", k, dk, value);
  expect_gradient("v", v, dv, value);
}

TEST(ReferenceGradient, CrossEntropy) {
  Random random(5);
  Matrix logits = random_matrix(random, DType::f32, 4, 6, -2, 2);
  const Matrix targets = index_column({7, -1, 10, 12}),
               weights = random_matrix(random, DType::f32, 4, 1, 0.1, 1);
  Matrix max(DType::f32, 4, 1), sum(max), target(max), loss(max), d_logits(DType::f32, 4, 6);
  const auto value = [&] {
    run(gpu::LogSumExpUpdate{logits.view(), targets.view(), max.view(), sum.view(), target.view(), 7, true});
    run(gpu::TokenLoss{max.view(), sum.view(), target.view(), targets.view(), weights.view(), loss.view()});
    double total = 0;
    for (int64_t row = 0; row < 4; ++row) total += 0.25 * loss.at(row, 0);
    return total;
  };
  value();
  run(gpu::CrossEntropyBackward{logits.view(), targets.view(), weights.view(), max.view(), sum.view(),
                                d_logits.view(), 7, 0.25f});
  expect_gradient("logits", logits, d_logits, value);
}

TEST(ReferenceGradient, Linear) {
  Random random(6);
  Matrix x = random_matrix(random, DType::f32, 3, 4), weight = random_matrix(random, DType::f32, 5, 4);
  const Matrix dy = random_matrix(random, DType::f32, 3, 5);
  Matrix y(DType::f32, 3, 5), dx(DType::f32, 3, 4), dw(DType::f32, 5, 4);
  const auto packed = [&](gpu::WeightLayout layout) {
    return gpu::PackedWeight{weight.view().data, weight.view().span_bytes(), DType::f32, 5, 4, layout};
  };
  run(gpu::LinearBackwardInput{dy.view(), packed(gpu::WeightLayout::backward), dx.view(), false});
  run(gpu::LinearBackwardWeight{dy.view(), x.view(), dw.view(), false});
  const auto value = [&] {
    run(gpu::LinearForward{x.view(), packed(gpu::WeightLayout::forward), {}, y.view()});
    return weighted_sum(y, dy);
  };
  expect_gradient("x", x, dx, value);
  expect_gradient("weight", weight, dw, value);
}

}  // namespace
}  // namespace sluice::test
