#pragma once

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <vector>

#include "tests/support/ops_trial.h"

// What every backend's ops must do: agree with the reference. The suites stand in *_ops_contract.h beside
// this file, by groups of ops, so that a backend under way instantiates those that it has.
namespace sluice::test {

class OpsContract : public testing::TestWithParam<OpsBackend> {
 protected:
  void expect(const Trial& trial) { expect_as_reference(GetParam(), trial); }

  Random random{20240611};  // a fixed seed: the same numbers in every run
};

inline std::string backend_name(const testing::TestParamInfo<OpsBackend>& info) {
  return info.param.name;
}

inline constexpr std::array kComputeTypes{DType::f32, DType::bf16};

struct Size {
  int64_t rows = 0;
  int64_t cols = 0;
};

// Rows around the ranges of 64, columns around vectors of 4, 8, 16 and the 32 lanes of sums.
inline std::vector<Size> row_sizes() {
  std::vector<Size> sizes{{0, 16}, {0, 0}, {3, 0}, {65, 576}, {129, 33}};
  for (int64_t cols : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100})
    sizes.push_back({3, cols});
  for (int64_t rows : {1, 63, 64, 65}) sizes.push_back({rows, 17});
  return sizes;
}

// Calls body(dtype, rows, cols) for all of them, with a trace for messages.
template <class Body>
void for_each_size(const Body& body) {
  for (DType dtype : kComputeTypes) {
    for (Size size : row_sizes()) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " " << size.rows << " x " << size.cols);
      body(dtype, size.rows, size.cols);
    }
  }
}

// Numbers whose magnitude is in [low, high].
inline Matrix signed_matrix(Random& random, DType dtype, int64_t rows, int64_t cols, double low,
                            double high) {
  Matrix matrix = random_matrix(random, dtype, rows, cols, low, high);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      if (random() % 2 == 0) matrix.set(row, col, -matrix.at(row, col));
  return matrix;
}

}  // namespace sluice::test
