#include "gpu/host/attention.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "apps/common/pool.h"
#include "engine/base/float_bits.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/panel_scalar.h"

namespace sluice::gpu::host {
namespace {

// Random values, a stride wider than the columns, misaligned; the gap holds NaN, which would show in any sum.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, uint32_t seed, int64_t gap = 3, int64_t skew = 1)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap), skew_(skew) {
    const int64_t count = rows * stride_ + skew + 2;
    bytes_.resize(static_cast<size_t>(count) * size_bytes(dtype));
    for (int64_t i = 0; i < count; ++i) store_float(bytes_.data(), dtype, i, std::nanf(""));
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) store_float(view().data, dtype, r * stride_ + c, normal(random));
  }
  View view() {
    return View(bytes_.data() + static_cast<size_t>(skew_) * size_bytes(dtype_), dtype_, rows_, cols_,
                stride_);
  }
  double at(int64_t r, int64_t c) { return load_float(view().data, dtype_, r * stride_ + c); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  int64_t rows_, cols_, stride_, skew_;
  std::vector<std::byte> bytes_;
};

template <class Op>
void run_op(const Op& op, Executor& executor, const PanelKernel* kernel) {
  const size_t size = workspace_bytes(op, executor.thread_count(), {kernel});
  std::vector<std::byte> memory(size + kScratchAlignment, std::byte{0xff});
  void* at = memory.data();
  size_t space = memory.size();
  std::align(kScratchAlignment, size, at, space);
  run(op, executor, {static_cast<std::byte*>(at), size}, {kernel});
}

struct Case {
  int64_t heads, key_heads, dim;
  std::vector<AttentionSegment> segments;
  int64_t query_rows, key_rows;
};

// Tensors of a case; o and lse are the outputs.
struct Tensors {
  Tensors(const Case& c, DType dtype)
      : q(dtype, c.query_rows, c.heads * c.dim, 1),
        k(dtype, c.key_rows, c.key_heads * c.dim, 2),
        v(dtype, c.key_rows, c.key_heads * c.dim, 3, 5),
        o(dtype, c.query_rows, c.heads * c.dim, 4),
        lse(DType::f32, c.query_rows, c.heads, 5),
        d_o(dtype, c.query_rows, c.heads * c.dim, 6),
        dq(dtype, c.query_rows, c.heads * c.dim, 7),
        dk(dtype, c.key_rows, c.key_heads * c.dim, 8),
        dv(dtype, c.key_rows, c.key_heads * c.dim, 9) {}
  AttentionForward forward(const Case& c) {
    return {shape(c), segments(c), q.view(), k.view(), v.view(), o.view(), lse.view()};
  }
  AttentionBackward backward(const Case& c) {
    return {shape(c),   segments(c), q.view(),  k.view(),  v.view(), o.view(),
            lse.view(), d_o.view(),  dq.view(), dk.view(), dv.view()};
  }
  static AttentionShape shape(const Case& c) {
    return {c.heads, c.key_heads, c.dim, 1 / std::sqrt(static_cast<float>(c.dim))};
  }
  static AttentionSegments segments(const Case& c) {
    return std::make_shared<const std::vector<AttentionSegment>>(c.segments);
  }
  Matrix q, k, v, o, lse, d_o, dq, dk, dv;
};

// The textbook in double, over the same (rounded) inputs.
struct Expected {
  std::vector<double> o, lse, dq, dk, dv;
};
Expected expect(const Case& c, Tensors& t) {
  const int64_t h_cols = c.heads * c.dim, g_cols = c.key_heads * c.dim, group = c.heads / c.key_heads;
  const double scale = static_cast<double>(Tensors::shape(c).scale);
  const auto zeros = [](int64_t count) { return std::vector<double>(static_cast<size_t>(count)); };
  Expected e{zeros(c.query_rows * h_cols), zeros(c.query_rows * c.heads), zeros(c.query_rows * h_cols),
             zeros(c.key_rows * g_cols), zeros(c.key_rows * g_cols)};
  for (const AttentionSegment& s : c.segments) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t qc = h * c.dim, kc = h / group * c.dim;
      for (int64_t i = 0; i < s.query_count; ++i) {
        const int64_t row = s.query_begin + i, visible = s.key_count - s.query_count + i + 1;
        std::vector<double> p(static_cast<size_t>(visible)), dp(static_cast<size_t>(visible));
        double sum = 0, delta = 0;
        for (int64_t j = 0; j < visible; ++j) {
          double score = 0;
          for (int64_t d = 0; d < c.dim; ++d) {
            score += t.q.at(row, qc + d) * t.k.at(s.key_begin + j, kc + d);
            dp[static_cast<size_t>(j)] += t.d_o.at(row, qc + d) * t.v.at(s.key_begin + j, kc + d);
          }
          sum += p[static_cast<size_t>(j)] = std::exp(score * scale);
        }
        e.lse[static_cast<size_t>(row * c.heads + h)] = std::log(sum);
        for (int64_t j = 0; j < visible; ++j) {
          p[static_cast<size_t>(j)] /= sum;
          delta += p[static_cast<size_t>(j)] * dp[static_cast<size_t>(j)];
        }
        for (int64_t j = 0; j < visible; ++j) {
          const int64_t key = s.key_begin + j;
          const double weight = p[static_cast<size_t>(j)];
          const double ds = weight * (dp[static_cast<size_t>(j)] - delta) * scale;
          for (int64_t d = 0; d < c.dim; ++d) {
            e.o[static_cast<size_t>(row * h_cols + qc + d)] += weight * t.v.at(key, kc + d);
            e.dq[static_cast<size_t>(row * h_cols + qc + d)] += ds * t.k.at(key, kc + d);
            e.dk[static_cast<size_t>(key * g_cols + kc + d)] += ds * t.q.at(row, qc + d);
            e.dv[static_cast<size_t>(key * g_cols + kc + d)] += weight * t.d_o.at(row, qc + d);
          }
        }
      }
    }
  }
  return e;
}

// Every element within `unit` (a rounding of the dtype) times a small factor of the largest magnitude that is
// summed: inputs are standard normal, so sums stay within a few tens.
void expect_near(Matrix& actual, const std::vector<double>& expected, double unit, const char* what) {
  const View view = actual.view();
  double largest = 1;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (int64_t r = 0; r < view.rows; ++r)
    for (int64_t c = 0; c < view.cols; ++c)
      ASSERT_NEAR(actual.at(r, c), expected[static_cast<size_t>(r * view.cols + c)], 16 * unit * largest)
          << what << " at " << r << ", " << c;
}

struct Variant {
  const PanelKernel* kernel;
  DType dtype;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const PanelKernel* kernel : usable_panel_kernels()) {
    if (kernel->operand == DType::f32) all.push_back({kernel, DType::f32});
    all.push_back({kernel, DType::bf16});
  }
  return all;
}

class AttentionTest : public testing::TestWithParam<Variant> {
 protected:
  double unit() const { return GetParam().dtype == DType::f32 ? 0x1p-22 : 0x1p-8; }
};

const std::vector<Case>& training_cases() {
  static const std::vector<Case> cases{
      {1, 1, 16, {{0, 1, 0, 1}}, 1, 1},
      {3, 1, 64, {{0, 65, 0, 65}}, 65, 65},
      {4, 4, 8, {{0, 31, 0, 31}, {31, 1, 31, 1}, {32, 33, 32, 33}}, 70, 70},
      {4, 1, 10, {{2, 40, 2, 40}, {50, 7, 50, 7}}, 64, 64},
      {2, 1, 80, {{0, 100, 0, 100}}, 100, 100},
      {2, 2, 128, {{0, 64, 0, 64}}, 64, 64},
      {1, 1, 256, {{0, 34, 0, 34}}, 34, 34},
      {9, 3, 64, {{0, 300, 0, 300}, {300, 29, 300, 29}}, 384, 384},
  };
  return cases;
}

TEST_P(AttentionTest, ForwardAndBackwardMatchTheTextbook) {
  SerialExecutor serial;
  for (const Case& c : training_cases()) {
    SCOPED_TRACE("D " + std::to_string(c.dim) + ", rows " + std::to_string(c.query_rows));
    Tensors t(c, GetParam().dtype);
    const Expected e = expect(c, t);
    run_op(t.forward(c), serial, GetParam().kernel);
    expect_near(t.o, e.o, unit(), "o");
    expect_near(t.lse, e.lse, GetParam().dtype == DType::f32 ? 0x1p-22 : 0x1p-16, "lse");
    run_op(t.backward(c), serial, GetParam().kernel);
    expect_near(t.dq, e.dq, unit(), "dq");
    expect_near(t.dk, e.dk, unit(), "dk");
    expect_near(t.dv, e.dv, unit(), "dv");
  }
}

TEST_P(AttentionTest, GenerationSeesTheWholeCache) {
  SerialExecutor serial;
  const Case cases[] = {{3, 1, 64, {{0, 1, 0, 100}, {1, 3, 100, 33}, {4, 5, 140, 5}}, 9, 150},
                        {2, 2, 32, {{0, 40, 10, 90}}, 40, 100}};
  for (const Case& c : cases) {
    Tensors t(c, GetParam().dtype);
    const Expected e = expect(c, t);
    run_op(t.forward(c), serial, GetParam().kernel);
    expect_near(t.o, e.o, unit(), "o");
  }
}

// Positive huge and negative huge scores: no overflow, and one key takes all the weight.
TEST_P(AttentionTest, HugeScoresStayFinite) {
  SerialExecutor serial;
  const Case c{1, 1, 16, {{0, 50, 0, 50}}, 50, 50};
  Tensors t(c, GetParam().dtype);
  for (int64_t r = 0; r < 50; ++r)
    for (int64_t d = 0; d < 16; ++d) {
      store_float(t.q.view().row_range(r, r + 1).data, GetParam().dtype, d, 100);
      store_float(t.k.view().row_range(r, r + 1).data, GetParam().dtype, d,
                  r % 2 == 0 ? -100.0f : 50.0f + static_cast<float>(r));
    }
  const Expected e = [&] {  // by hand: all weight on the largest odd key so far
    Expected result{std::vector<double>(50 * 16), {}, {}, {}, {}};
    for (int64_t r = 0; r < 50; ++r)
      for (int64_t d = 0; d < 16; ++d)
        result.o[static_cast<size_t>(r * 16 + d)] = t.v.at(r == 0 ? 0 : r - (r % 2 == 0), d);
    return result;
  }();
  run_op(t.forward(c), serial, GetParam().kernel);
  expect_near(t.o, e.o, unit(), "o");
}

TEST_P(AttentionTest, BitsDependOnNoThread) {
  const Case c = training_cases().back();
  SerialExecutor serial;
  Tensors reference(c, GetParam().dtype);
  run_op(reference.forward(c), serial, GetParam().kernel);
  run_op(reference.backward(c), serial, GetParam().kernel);
  for (int threads : {2, 3}) {
    const std::unique_ptr<Executor> pool = make_pool(threads);
    Tensors t(c, GetParam().dtype);
    run_op(t.forward(c), *pool, GetParam().kernel);
    run_op(t.backward(c), *pool, GetParam().kernel);
    EXPECT_TRUE(t.o.bytes() == reference.o.bytes());
    EXPECT_TRUE(t.lse.bytes() == reference.lse.bytes());
    EXPECT_TRUE(t.dq.bytes() == reference.dq.bytes());
    EXPECT_TRUE(t.dk.bytes() == reference.dk.bytes());
    EXPECT_TRUE(t.dv.bytes() == reference.dv.bytes());
  }
}

// One query against the cache gives the bits that the same row had in the whole document.
TEST_P(AttentionTest, RowsAreComputedAlike) {
  SerialExecutor serial;
  const Case whole{3, 1, 64, {{0, 75, 0, 75}}, 75, 75};
  Tensors all(whole, GetParam().dtype), one(whole, GetParam().dtype);
  run_op(all.forward(whole), serial, GetParam().kernel);
  for (int64_t row : {0, 31, 32, 50, 74}) {
    Case last = whole;
    last.segments = {{row, 1, 0, row + 1}};
    run_op(one.forward(last), serial, GetParam().kernel);
    for (int64_t c = 0; c < 192; ++c) ASSERT_EQ(one.o.at(row, c), all.o.at(row, c)) << row << ", " << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionTest, testing::ValuesIn(variants()), [](const auto& param) {
  return std::string(param.param.kernel->name) + "_of_" + std::string(name(param.param.dtype));
});

}  // namespace
}  // namespace sluice::gpu::host
