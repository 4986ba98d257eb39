#include <Eigen/Core>
#include <algorithm>
#include <cstring>

#include "engine/base/math.h"
#include "gpu/host/matmul_library.h"
#include "gpu/host/panel_scalar.h"

// Eigen 3.4, fp32. It packs operands in every call and allocates for that by itself; every call has kRows
// rows, the last ones padded, so that its blocking and so the order of sums depends on the depth alone.
namespace sluice::gpu::host {
namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kCols = 384;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::OuterStride<>>;

class EigenMatmul final : public MatmulKernel {
 public:
  const char* name() const override { return "eigen_fp32"; }
  DType operand() const override { return DType::f32; }
  int64_t block_cols() const override { return kCols; }
  size_t block_bytes(int64_t depth) const override {
    return static_cast<size_t>(depth * kCols) * sizeof(float);
  }
  size_t pack_scratch_bytes(int64_t depth) const override { return block_bytes(depth); }
  // Packed as [depth][kCols], columns beyond the source zero.
  void pack(const PackJob& job) const override {
    pack_scalar({.sources = job.sources,
                 .order = job.order,
                 .round_to_bf16 = job.round_to_bf16,
                 .depth = job.depth,
                 .col_begin = job.col_begin,
                 .col_count = job.col_count,
                 .width = kCols,
                 .panel = job.block},
                DType::f32);
  }
  size_t product_scratch_bytes(int64_t depth, int64_t) const override {
    return static_cast<size_t>(kRows * (depth + kCols)) * sizeof(float);
  }
  void multiply(const BlockProduct& product) const override {
    if (product.depth == 0) return finish_rows(nullptr, 0, product.addend, product.out);
    for (int64_t row = 0; row < product.row_count; row += kRows)
      multiply_rows(product, row, std::min(kRows, product.row_count - row));
  }
  size_t left_bytes(int64_t depth) const override {
    return static_cast<size_t>(depth * kLeftRows) * sizeof(float);
  }
  LeftOperand pack_left(const View& source, std::byte* out) const override {
    const int64_t stride = source.rows * static_cast<int64_t>(sizeof(float));
    copy_transposed(source, DType::f32, out, stride);
    return {out, stride, 4};
  }

 private:
  void multiply_rows(const BlockProduct& product, int64_t row, int64_t rows) const {
    float* left = reinterpret_cast<float*>(product.scratch);
    float* sums = left + kRows * product.depth;
    for (int64_t r = 0; r < kRows; ++r)
      std::memcpy(left + r * product.depth,
                  product.left.data + (row + std::min(r, rows - 1)) * product.left.row_stride_bytes,
                  static_cast<size_t>(product.depth) * sizeof(float));
    const Rows a(left, kRows, product.depth, Eigen::OuterStride<>(product.depth));
    const Rows b(reinterpret_cast<const float*>(product.block), product.depth, kCols,
                 Eigen::OuterStride<>(kCols));
    Eigen::Map<Matrix>(sums, kRows, kCols).noalias() = a * b;
    const View addend = product.addend.empty() ? View() : product.addend.row_range(row, row + rows);
    finish_rows(sums, kCols, addend, product.out.row_range(row, row + rows));
  }
};

}  // namespace

const char* library_name() {
  return "eigen";
}

const MatmulKernel* library_matmul(DType operand) {
  static const EigenMatmul kernel;
  return operand == DType::f32 ? &kernel : nullptr;
}

// On one thread: Eigen has none of its own here.
LibraryProduct make_library_product(const LibraryShape& shape, const void* right, int) {
  if (shape.operand != DType::f32 || shape.out != DType::f32) return nullptr;
  return [shape, right](const void* left, void* out) {
    const bool left_turned = shape.left_turned, right_turned = shape.right == PackOrder::depth_is_col;
    const auto plain = [](const void* data, int64_t rows, int64_t cols) {
      return Rows(static_cast<const float*>(data), rows, cols, Eigen::OuterStride<>(cols));
    };
    const Rows a = left_turned ? plain(left, shape.depth, shape.rows) : plain(left, shape.rows, shape.depth);
    const Rows b =
        right_turned ? plain(right, shape.cols, shape.depth) : plain(right, shape.depth, shape.cols);
    Eigen::Map<Matrix> c(static_cast<float*>(out), shape.rows, shape.cols);
    if (left_turned && right_turned)
      c.noalias() = a.transpose() * b.transpose();
    else if (left_turned)
      c.noalias() = a.transpose() * b;
    else if (right_turned)
      c.noalias() = a * b.transpose();
    else
      c.noalias() = a * b;
  };
}

}  // namespace sluice::gpu::host
