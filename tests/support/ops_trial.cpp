#include "tests/support/ops_trial.h"

#include <gtest/gtest.h>

#include "gpu/ops/validate.h"
#include "gpu/reference/reference.h"

namespace sluice::test {
namespace {

using Matrices = std::vector<Matrix>;

Matrices run_trial(const Trial& trial, Layout layout, const OpsBackend::Run& run, PackedBuffers::Size size) {
  Matrices matrices;
  std::vector<gpu::View> views;
  for (const Operand& operand : trial.operands) {
    matrices.push_back(operand.matrix.in(layout));
    views.push_back(matrices.back().view());
  }
  PackedBuffers packed(std::move(size));
  for (const gpu::Op& op : trial.program(views, packed)) {
    gpu::validate(op);
    run(op);
  }
  return matrices;
}

bool within(double actual, double expected, const Tolerance& tolerance) {
  if (std::isnan(expected) || std::isnan(actual)) return std::isnan(expected) && std::isnan(actual);
  if (std::isinf(expected) || std::isinf(actual)) return expected == actual;
  return std::abs(actual - expected) <= tolerance.absolute + tolerance.relative * std::abs(expected);
}

// Names the first element that is off, and how many are.
void expect_close(const Operand& operand, const Matrix& actual, const Matrix& expected) {
  int64_t off = 0;
  testing::Message first;
  const gpu::View& view = expected.view();
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int64_t col = 0; col < view.cols; ++col) {
      if (within(actual.at(row, col), expected.at(row, col), operand.tolerance)) continue;
      if (off++ == 0)
        first << "[" << row << "][" << col << "] = " << testing::PrintToString(actual.at(row, col))
              << ", reference " << testing::PrintToString(expected.at(row, col));
    }
  }
  EXPECT_EQ(off, 0) << operand.name << first << "; tolerance " << operand.tolerance.absolute << " + "
                    << operand.tolerance.relative << " relative, elements " << view.element_count();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const OpsBackend& backend) {
  return out << backend.name;
}

gpu::PackedWeight PackedBuffers::make(int64_t rows, int64_t cols, DType dtype, gpu::WeightLayout layout) {
  const size_t size = size_(rows, cols, dtype, layout);
  buffers_.emplace_back(DType::u8, 1, static_cast<int64_t>(size));
  return {buffers_.back().view().data, size, dtype, rows, cols, layout};
}

size_t Trial::add(std::string name, Matrix matrix, Tolerance tolerance) {
  operands.push_back({std::move(name), std::move(matrix), tolerance});
  return operands.size() - 1;
}

void expect_as_reference(const OpsBackend& backend, const Trial& trial) {
  const auto reference = [](const gpu::Op& op) { gpu::reference::run(op); };
  const Matrices expected = run_trial(trial, {}, reference, gpu::reference::packed_bytes);
  std::vector<Matrices> results;
  for (Layout layout : {Layout{}, Layout{1, 3}})
    for (const OpsBackend::Run& run : backend.runs)
      results.push_back(run_trial(trial, layout, run, backend.packed_bytes));
  for (size_t i = 0; i < trial.operands.size(); ++i) {
    const Operand& operand = trial.operands[i];
    if (operand.tolerance.exact()) {
      EXPECT_TRUE(results[0][i].same_elements(expected[i]))
          << operand.name << " has other bits than the reference";
    }
    expect_close(operand, results[0][i], expected[i]);
    for (size_t r = 0; r < results.size(); ++r) {
      EXPECT_TRUE(results[r][i].same_elements(results[0][i]))
          << operand.name << " differs between runs 0 and " << r;
      EXPECT_TRUE(results[r][i].pattern_intact())
          << operand.name << ": written beyond its elements, run " << r;
    }
  }
}

}  // namespace sluice::test
