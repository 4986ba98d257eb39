#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "gpu/ops/ops.h"
#include "tests/support/matrix.h"
#include "tests/support/tolerance.h"

// Runs ops on a backend and on the reference and compares every element of every operand.
namespace sluice::test {

// What the contract needs of a backend on memory of the host. `runs` are ways to run an op now, each with a
// workspace of just the size it asks for, that must all give the same bits: thread counts, for example.
struct OpsBackend {
  using Run = std::function<void(const gpu::Op&)>;

  std::string name;  // letters and digits: part of the test's name
  std::vector<Run> runs;
  std::function<size_t(int64_t rows, int64_t cols, DType dtype, gpu::WeightLayout layout)> packed_bytes;
};
std::ostream& operator<<(std::ostream& out, const OpsBackend& backend);

// Buffers of packed weights, in the layout of the backend that runs.
class PackedBuffers {
 public:
  using Size = decltype(OpsBackend::packed_bytes);
  explicit PackedBuffers(Size size) : size_(std::move(size)) {}
  gpu::PackedWeight make(int64_t rows, int64_t cols, DType dtype, gpu::WeightLayout layout);

 private:
  Size size_;
  std::vector<Matrix> buffers_;
};

// An operand with its value before. One that the ops write has a tolerance; others must keep their bits.
struct Operand {
  std::string name;
  Matrix matrix;
  Tolerance tolerance = {};
};

struct Trial {
  using Program =
      std::function<std::vector<gpu::Op>(std::span<const gpu::View> views, PackedBuffers& packed)>;

  std::vector<Operand> operands;
  Program program;  // given a view of each operand

  // Adds an operand; its index among the views.
  size_t add(std::string name, Matrix matrix, Tolerance tolerance = {});
};

// Expects (GoogleTest) that the backend's results are within tolerance of the reference's, and that they have
// the same bits for all runs and for operands that lie aligned and whole, or at odd addresses with gaps.
void expect_as_reference(const OpsBackend& backend, const Trial& trial);

}  // namespace sluice::test
