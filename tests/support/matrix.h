#pragma once

#include <random>
#include <vector>

#include "gpu/view.h"

namespace sluice::test {

// How a matrix lies in memory, in elements: how far its begin is from an alignment of 256 bytes, and what
// separates its rows.
struct Layout {
  int64_t offset = 0;
  int64_t gap = 0;
};

// A matrix for tests, owner of its memory. Gaps between rows and some bytes before the first hold NaN, which
// must survive and enter no result; nothing follows the last element, so that AddressSanitizer sees reads and
// writes there. Copies lie in memory as the original does.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, Layout layout = {});
  Matrix(const Matrix& other);
  Matrix(Matrix&&) = default;
  Matrix& operator=(const Matrix&) = delete;

  const gpu::View& view() const { return view_; }
  Matrix in(Layout layout) const;  // the same elements
  double at(int64_t row, int64_t col) const;
  void set(int64_t row, int64_t col, double value);
  bool pattern_intact() const;
  bool same_elements(const Matrix& other) const;  // bit by bit

 private:
  bool is_element(size_t byte) const;

  Layout layout_;
  std::vector<std::byte> storage_;
  size_t begin_ = 0;  // of the first element in the storage
  gpu::View view_;
};

using Random = std::mt19937_64;

Matrix random_matrix(Random& random, DType dtype, int64_t rows, int64_t cols, double low = -1,
                     double high = 1);
Matrix index_column(const std::vector<int32_t>& values);
Matrix matrix_of(DType dtype, int64_t rows, int64_t cols, const std::vector<double>& values);

}  // namespace sluice::test
