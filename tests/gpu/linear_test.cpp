#include "gpu/host/linear.h"

#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <thread>
#include <vector>

#include "apps/common/pool.h"
#include "engine/base/float_bits.h"
#include "engine/base/math.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/matmul_library.h"
#include "gpu/host/panel_scalar.h"

namespace sluice::gpu::host {
namespace {

// A matrix of random values that starts `skew` elements off alignment, with a wider stride than columns;
// the gap holds NaN, which would show in any sum.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, uint32_t seed, int64_t gap = 3, int64_t skew = 1)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + gap), skew_(skew) {
    const size_t count = static_cast<size_t>(rows * stride_ + skew + 2);
    bytes_.resize(count * size_bytes(dtype));
    for (size_t i = 0; i < count; ++i)
      store_float(bytes_.data(), dtype, static_cast<int64_t>(i), std::nanf(""));
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

struct Scratch {
  explicit Scratch(size_t size) : bytes(size + kScratchAlignment, std::byte{0xff}) {}
  Workspace workspace() {
    void* at = bytes.data();
    size_t space = bytes.size();
    std::align(kScratchAlignment, bytes.size() - kScratchAlignment, at, space);
    return {static_cast<std::byte*>(at), bytes.size() - kScratchAlignment};
  }
  std::vector<std::byte> bytes;
};

// Runs an op with exactly the workspace that it asks for; bytes around it are checked by the sanitizer.
template <class Op>
void run_op(const Op& op, Executor& executor, const LinearOptions& options) {
  Scratch scratch(workspace_bytes(op, executor.thread_count(), options));
  run(op, executor, scratch.workspace(), options);
}

struct Packed {
  Packed(const std::vector<LinearPack::Source>& sources, DType dtype, WeightLayout layout, Executor& executor,
         const LinearOptions& options) {
    int64_t rows = 0;
    for (const LinearPack::Source& source : sources) rows += source.high.rows;
    const int64_t cols = sources[0].high.cols;
    scratch = std::make_unique<Scratch>(packed_bytes(rows, cols, dtype, layout, options));
    weight = {scratch->workspace().data, scratch->workspace().size_bytes, dtype, rows, cols, layout};
    run_op(LinearPack{sources, weight}, executor, options);
  }
  std::unique_ptr<Scratch> scratch;
  PackedWeight weight;
};

// Error of a sum of `depth` products in fp32 (any order), then of the output's rounding: depth * 2^-24 times
// the sum of magnitudes (Higham 2002, 3.1), and half a unit of bf16's 8 bits. bf16 hardware rounds each pair.
double tolerance(double magnitude, int64_t depth, DType out) {
  const double sum = magnitude * static_cast<double>(depth + 2) * 0x1p-24;
  return sum + (out == DType::bf16 ? magnitude * 0x1p-8 : 0) + 1e-30;
}

class LinearTest : public testing::TestWithParam<const MatmulKernel*> {
 protected:
  std::vector<DType> dtypes() const {
    if (GetParam()->operand() == DType::bf16) return {DType::bf16};
    return {DType::f32, DType::bf16};
  }
  LinearOptions options(int64_t row_chunk = 0) const { return {GetParam(), row_chunk}; }
};

struct Shape {
  int64_t t, n, k;
};
const Shape kShapes[] = {{1, 1, 1},     {3, 5, 7},     {8, 48, 16},  {9, 47, 15},
                         {64, 49, 33},  {65, 97, 100}, {63, 96, 31}, {17, 384, 64},
                         {10, 385, 65}, {2, 30, 1537}, {5, 1, 3100}, {7, 200, 1}};

TEST_P(LinearTest, ForwardMatchesDoubleLoops) {
  SerialExecutor serial;
  for (const Shape& s : kShapes) {
    for (DType dtype : dtypes()) {
      for (DType out : {DType::f32, dtype}) {
        for (bool with_addend : {false, true}) {
          Matrix x(dtype, s.t, s.k, 1), w(dtype, s.n, s.k, 2), addend(dtype, s.t, s.n, 3, 2);
          Matrix y(out, s.t, s.n, 4, 5);
          Packed packed({{w.view(), {}}}, dtype, WeightLayout::forward, serial, options());
          run_op(LinearForward{x.view(), packed.weight, with_addend ? addend.view() : View(), y.view()},
                 serial, options());
          for (int64_t t = 0; t < s.t; ++t) {
            for (int64_t n = 0; n < s.n; ++n) {
              double sum = with_addend ? addend.at(t, n) : 0, magnitude = std::abs(sum);
              for (int64_t k = 0; k < s.k; ++k) {
                sum += x.at(t, k) * w.at(n, k);
                magnitude += std::abs(x.at(t, k) * w.at(n, k));
              }
              ASSERT_NEAR(y.at(t, n), sum, tolerance(magnitude, s.k, out))
                  << "T " << s.t << " N " << s.n << " K " << s.k << " at " << t << ", " << n;
            }
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, BackwardInputMatchesDoubleLoops) {
  SerialExecutor serial;
  for (const Shape& s : kShapes) {
    for (DType dtype : dtypes()) {
      for (bool accumulate : {false, true}) {
        const DType out = accumulate ? DType::f32 : dtype;
        Matrix dy(dtype, s.t, s.n, 1), w(dtype, s.n, s.k, 2), dx(out, s.t, s.k, 3), before(out, s.t, s.k, 3);
        Packed packed({{w.view(), {}}}, dtype, WeightLayout::backward, serial, options());
        run_op(LinearBackwardInput{dy.view(), packed.weight, dx.view(), accumulate}, serial, options());
        for (int64_t t = 0; t < s.t; ++t) {
          for (int64_t k = 0; k < s.k; ++k) {
            double sum = accumulate ? before.at(t, k) : 0, magnitude = std::abs(sum);
            for (int64_t n = 0; n < s.n; ++n) {
              sum += dy.at(t, n) * w.at(n, k);
              magnitude += std::abs(dy.at(t, n) * w.at(n, k));
            }
            ASSERT_NEAR(dx.at(t, k), sum, tolerance(magnitude, s.n, out))
                << "T " << s.t << " N " << s.n << " K " << s.k << " at " << t << ", " << k;
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, BackwardWeightMatchesDoubleLoops) {
  SerialExecutor serial;
  const Shape more[] = {{0, 3, 5}, {1025, 10, 50}, {2049, 97, 3}};
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), std::begin(more), std::end(more));
  for (const Shape& s : shapes) {
    for (DType dtype : dtypes()) {
      for (bool accumulate : {false, true}) {
        Matrix dy(dtype, s.t, s.n, 1), x(dtype, s.t, s.k, 2);
        Matrix dw(DType::f32, s.n, s.k, 3), before(DType::f32, s.n, s.k, 3);
        run_op(LinearBackwardWeight{dy.view(), x.view(), dw.view(), accumulate}, serial, options());
        for (int64_t n = 0; n < s.n; ++n) {
          for (int64_t k = 0; k < s.k; ++k) {
            double sum = accumulate ? before.at(n, k) : 0, magnitude = std::abs(sum);
            for (int64_t t = 0; t < s.t; ++t) {
              sum += dy.at(t, n) * x.at(t, k);
              magnitude += std::abs(dy.at(t, n) * x.at(t, k));
            }
            ASSERT_NEAR(dw.at(n, k), sum, tolerance(magnitude, s.t, DType::f32))
                << "T " << s.t << " N " << s.n << " K " << s.k << " at " << n << ", " << k;
          }
        }
      }
    }
  }
}

// Sources above one another, of every storage, odd row counts: as one matrix of the same values.
TEST_P(LinearTest, PacksStackedAndSplitSources) {
  SerialExecutor serial;
  const int64_t cols = 70, counts[] = {33, 1, 50};
  for (DType dtype : dtypes()) {
    for (WeightLayout layout : {WeightLayout::forward, WeightLayout::backward}) {
      Matrix master(DType::f32, 84, cols, 5), high(DType::bf16, 84, cols, 6), low(DType::i16, 84, cols, 7, 1);
      Matrix joined(DType::f32, 84, cols, 5);
      for (int64_t r = 0; r < 84; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const SplitFloat halves = split(master.view().row<float>(r)[c]);
          high.view().row<BFloat16>(r)[c] = halves.high;
          low.view().row<int16_t>(r)[c] = halves.low;
          const bool is_split = r >= 33;  // the first source stays fp32
          float& value = joined.view().row<float>(r)[c];
          if (dtype == DType::bf16) value = to_float(is_split ? halves.high : to_bfloat16(value));
        }
      }
      std::vector<LinearPack::Source> sources;
      int64_t begin = 0;
      for (int64_t count : counts) {
        const bool is_split = begin > 0;
        sources.push_back({(is_split ? high : master).view().row_range(begin, begin + count),
                           is_split ? low.view().row_range(begin, begin + count) : View()});
        begin += count;
      }
      Packed stacked(sources, dtype, layout, serial, options());
      Packed whole({{joined.view(), {}}}, dtype, layout, serial, options());
      const bool forward = layout == WeightLayout::forward;
      Matrix x(dtype, 9, forward ? cols : 84, 8);
      Matrix from_stacked(DType::f32, 9, forward ? 84 : cols, 9),
          from_whole(DType::f32, 9, forward ? 84 : cols, 9);
      for (auto [packed, out] : {std::pair(&stacked, &from_stacked), std::pair(&whole, &from_whole)}) {
        if (forward)
          run_op(LinearForward{x.view(), packed->weight, {}, out->view()}, serial, options());
        else
          run_op(LinearBackwardInput{x.view(), packed->weight, out->view()}, serial, options());
      }
      EXPECT_EQ(from_stacked.bytes(), from_whole.bytes());
    }
  }
}

// Row chunk, threads, rows in the call and alignment change no bit.
TEST_P(LinearTest, BitsDependOnTheRowAlone) {
  const int64_t rows = 200, n = 100, k = 1600;
  for (DType dtype : dtypes()) {
    SerialExecutor serial;
    Matrix x(dtype, rows, k, 1), w(dtype, n, k, 2), reference(dtype, rows, n, 3);
    Packed packed({{w.view(), {}}}, dtype, WeightLayout::forward, serial, options());
    run_op(LinearForward{x.view(), packed.weight, {}, reference.view()}, serial, options(64));
    for (int64_t chunk : {8, 16, 24, 100, 128, 256, 1024}) {
      for (int threads : {1, 2, 3}) {
        const std::unique_ptr<Executor> pool = make_pool(threads);
        Matrix y(dtype, rows, n, 3);
        run_op(LinearForward{x.view(), packed.weight, {}, y.view()}, *pool, options(chunk));
        EXPECT_EQ(y.bytes(), reference.bytes()) << "row chunk " << chunk << ", threads " << threads;
      }
    }
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {3, 4}, {5, 20}, {63, 130}}) {
      Matrix y(dtype, rows, n, 3);
      run_op(LinearForward{x.view().row_range(begin, end), packed.weight, {}, y.view().row_range(begin, end)},
             serial, options());
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < n; ++c) ASSERT_EQ(y.at(r, c), reference.at(r, c)) << r << ", " << c;
    }
  }
}

TEST_P(LinearTest, WeightGradientBitsDependOnNoThread) {
  for (DType dtype : dtypes()) {
    SerialExecutor serial;
    Matrix dy(dtype, 1100, 300, 1), x(dtype, 1100, 400, 2), reference(DType::f32, 300, 400, 3);
    run_op(LinearBackwardWeight{dy.view(), x.view(), reference.view()}, serial, options());
    for (int threads : {2, 3}) {
      const std::unique_ptr<Executor> pool = make_pool(threads);
      Matrix dw(DType::f32, 300, 400, 3);
      run_op(LinearBackwardWeight{dy.view(), x.view(), dw.view()}, *pool, options());
      EXPECT_EQ(dw.bytes(), reference.bytes()) << threads << " threads";
    }
  }
}

// The library's kernel on packed blocks against one whole call of the library on plain operands.
TEST(LibraryMatmul, PackedAndPlainAreBitEqual) {
  SerialExecutor serial;
  const int64_t rows = 192, n = 768, k = 576;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const MatmulKernel* kernel = library_matmul(dtype);
    if (kernel == nullptr) continue;
    const LinearOptions options{kernel, 64};
    Matrix x(dtype, rows, k, 1, 0, 0), w(dtype, n, k, 2, 0, 0);
    Matrix packed_y(DType::f32, rows, n, 3, 0, 0), plain_y(DType::f32, rows, n, 3, 0, 0);
    Packed packed({{w.view(), {}}}, dtype, WeightLayout::forward, serial, options);
    run_op(LinearForward{x.view(), packed.weight, {}, packed_y.view()}, serial, options);
    for (bool pack_right : {false, true}) {
      const LibraryProduct plain = make_library_product({.operand = dtype,
                                                         .out = DType::f32,
                                                         .rows = rows,
                                                         .depth = k,
                                                         .cols = n,
                                                         .right = PackOrder::depth_is_col,
                                                         .pack_right = pack_right},
                                                        w.view().data, 1);
      ASSERT_TRUE(plain);
      plain(x.view().data, plain_y.view().data);
      EXPECT_TRUE(packed_y.bytes() == plain_y.bytes()) << name(dtype) << (pack_right ? " packed" : " plain");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LinearTest, testing::ValuesIn(usable_matmul_kernels()),
                         [](const auto& param) { return std::string(param.param->name()); });

TEST(KernelTable, RowsFollowTheProcessor) {
  EXPECT_EQ(kernel_table({.avx512 = true, .avx512_bf16 = true, .amd = true}).id, "avx512_bf16-1");
  EXPECT_EQ(kernel_table({.avx512 = true, .avx512_bf16 = true, .amd = true}).preferred_compute_dtype,
            DType::bf16);
  // Intel without AMX: bf16 loses, so it is upcast.
  const KernelTable intel = kernel_table({.avx512 = true, .avx512_bf16 = true});
  EXPECT_EQ(intel.id, "avx512-1");
  EXPECT_EQ(intel.bf16->operand(), DType::f32);
  EXPECT_EQ(intel.preferred_compute_dtype, DType::f32);
  const KernelTable plain = kernel_table(CpuFeatures{});
  EXPECT_EQ(plain.id, std::string("generic_") + library_name() + "-1");
  EXPECT_EQ(plain.bf16->operand(), DType::f32);
  EXPECT_STREQ(plain.attention_bf16->name, "generic_fp32");
}

}  // namespace
}  // namespace sluice::gpu::host
