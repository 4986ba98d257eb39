#include "tests/support/matrix.h"

#include <cstring>

#include "gpu/reference/element.h"

namespace sluice::test {
namespace {

constexpr std::byte kPattern{0xff};  // NaN in every format: it would show in any sum
constexpr size_t kAlignment = 256;   // what devices promise for buffers

}  // namespace

Matrix::Matrix(DType dtype, int64_t rows, int64_t cols, Layout layout) : layout_(layout) {
  const size_t element = size_bytes(dtype);
  const int64_t stride = cols + layout.gap;
  view_ = gpu::View(nullptr, dtype, rows, cols, stride);
  const size_t offset = static_cast<size_t>(layout.offset) * element;
  std::vector<std::byte> storage;
  storage.reserve(2 * kAlignment + offset + view_.span_bytes());
  const size_t past = reinterpret_cast<uintptr_t>(storage.data()) % kAlignment;
  begin_ = 2 * kAlignment - past + offset;
  storage.resize(begin_ + view_.span_bytes(), kPattern);
  storage_ = std::move(storage);
  view_.data = storage_.data() + begin_;
  for (int64_t row = 0; row < rows && cols > 0; ++row)
    std::memset(view_.row_range(row, row + 1).data, 0, static_cast<size_t>(cols) * element);
}

Matrix::Matrix(const Matrix& other) : Matrix(other.in(other.layout_)) {}

Matrix Matrix::in(Layout layout) const {
  Matrix copy(view_.dtype, view_.rows, view_.cols, layout);
  for (int64_t row = 0; row < view_.rows && view_.cols > 0; ++row)
    std::memcpy(copy.view_.row_range(row, row + 1).data, view_.row_range(row, row + 1).data,
                static_cast<size_t>(view_.cols) * size_bytes(view_.dtype));
  return copy;
}

double Matrix::at(int64_t row, int64_t col) const {
  return gpu::reference::load(view_, row, col);
}

void Matrix::set(int64_t row, int64_t col, double value) {
  gpu::reference::store(view_, row, col, value);
}

bool Matrix::is_element(size_t byte) const {
  if (byte < begin_) return false;
  const size_t element = size_bytes(view_.dtype);
  return (byte - begin_) / element % static_cast<size_t>(view_.stride) < static_cast<size_t>(view_.cols);
}

bool Matrix::pattern_intact() const {
  for (size_t byte = 0; byte < storage_.size(); ++byte)
    if (!is_element(byte) && storage_[byte] != kPattern) return false;
  return true;
}

bool Matrix::same_elements(const Matrix& other) const {
  SLUICE_CHECK(view_.rows == other.view_.rows && view_.cols == other.view_.cols);
  for (int64_t row = 0; row < view_.rows && view_.cols > 0; ++row)
    if (std::memcmp(view_.row_range(row, row + 1).data, other.view_.row_range(row, row + 1).data,
                    static_cast<size_t>(view_.cols) * size_bytes(view_.dtype)) != 0)
      return false;
  return true;
}

Matrix random_matrix(Random& random, DType dtype, int64_t rows, int64_t cols, double low, double high) {
  Matrix matrix(dtype, rows, cols);
  std::uniform_real_distribution<double> distribution(low, high);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) matrix.set(row, col, distribution(random));
  return matrix;
}

Matrix index_column(const std::vector<int32_t>& values) {
  Matrix matrix(DType::i32, static_cast<int64_t>(values.size()), 1);
  for (size_t i = 0; i < values.size(); ++i) matrix.set(static_cast<int64_t>(i), 0, values[i]);
  return matrix;
}

Matrix matrix_of(DType dtype, int64_t rows, int64_t cols, const std::vector<double>& values) {
  SLUICE_CHECK(static_cast<int64_t>(values.size()) == rows * cols);
  Matrix matrix(dtype, rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) matrix.set(i / cols, i % cols, values[static_cast<size_t>(i)]);
  return matrix;
}

}  // namespace sluice::test
