#include "bench/support/matmul_rate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/float_bits.h"
#include "gpu/host/linear.h"
#include "gpu/host/matmul_library.h"

namespace sluice::bench {
namespace {

using gpu::View;
using gpu::Workspace;

class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t cols, uint32_t seed = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        floats_(dtype == DType::f32 ? count() : 0),
        halves_(dtype == DType::bf16 ? count() : 0) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : floats_) value = uniform(random);
    for (BFloat16& value : halves_) value = to_bfloat16(uniform(random));
  }
  void* data() { return dtype_ == DType::f32 ? static_cast<void*>(floats_.data()) : halves_.data(); }
  View view() { return View(data(), dtype_, rows_, cols_); }
  double at(size_t i) const {
    return dtype_ == DType::f32 ? static_cast<double>(floats_[i]) : static_cast<double>(to_float(halves_[i]));
  }
  size_t count() const { return static_cast<size_t>(rows_ * cols_); }

 private:
  DType dtype_;
  int64_t rows_, cols_;
  std::vector<float> floats_;
  std::vector<BFloat16> halves_;
};

// 256-byte aligned bytes.
struct Bytes {
  explicit Bytes(size_t size) : storage(size / sizeof(Line) + 1) {}
  std::byte* data() { return storage.data()->bytes; }
  size_t size() const { return storage.size() * sizeof(Line); }
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  std::vector<Line> storage;
};

// One direction of one shape as c (rows, cols) = a b.
struct Problem {
  Problem(const LinearShape& s, Direction d, DType dtype, Executor& pool)
      : shape(s),
        direction(d),
        executor(pool),
        x(dtype, s.tokens, s.inputs, 1),
        w(dtype, s.outputs, s.inputs, 2),
        dy(dtype, s.tokens, s.outputs, 3),
        own(d == Direction::backward_weight ? DType::f32 : dtype, out_rows(), out_cols()),
        library(d == Direction::backward_weight ? DType::f32 : dtype, out_rows(), out_cols()),
        packed(0),
        workspace(0) {
    prepare_own(dtype);
    prepare_library(dtype);
  }
  int64_t out_rows() const { return direction == Direction::backward_weight ? shape.outputs : shape.tokens; }
  int64_t out_cols() const { return direction == Direction::forward ? shape.outputs : shape.inputs; }

  void prepare_own(DType dtype) {
    using namespace gpu;
    if (direction == Direction::backward_weight) {
      const LinearBackwardWeight op{dy.view(), x.view(), own.view(), false};
      workspace = Bytes(host::workspace_bytes(op, executor.thread_count()));
      run_own = [this, op] { host::run(op, executor, {workspace.data(), workspace.size()}); };
      return;
    }
    const WeightLayout layout =
        direction == Direction::forward ? WeightLayout::forward : WeightLayout::backward;
    packed = Bytes(host::packed_bytes(shape.outputs, shape.inputs, dtype, layout));
    const PackedWeight weight{packed.data(), packed.size(), dtype, shape.outputs, shape.inputs, layout};
    const LinearPack pack{{{w.view(), {}}}, weight};
    Bytes scratch(host::workspace_bytes(pack, executor.thread_count()));
    host::run(pack, executor, {scratch.data(), scratch.size()});
    const auto prepare = [&](const auto& op) {
      workspace = Bytes(host::workspace_bytes(op, executor.thread_count()));
      run_own = [this, op] { host::run(op, executor, {workspace.data(), workspace.size()}); };
    };
    if (direction == Direction::forward)
      prepare(LinearForward{x.view(), weight, {}, own.view()});
    else
      prepare(LinearBackwardInput{dy.view(), weight, own.view(), false});
  }

  void prepare_library(DType dtype) {
    using gpu::host::PackOrder;
    const bool weight = direction == Direction::backward_weight;
    Matrix& left = direction == Direction::forward ? x : dy;
    Matrix& right = weight ? x : w;
    const gpu::host::LibraryShape call{
        .operand = dtype,
        .out = weight ? DType::f32 : dtype,
        .rows = out_rows(),
        .depth = direction == Direction::forward ? shape.inputs
                 : weight                        ? shape.tokens
                                                 : shape.outputs,
        .cols = out_cols(),
        .left_turned = weight,
        .right = direction == Direction::forward ? PackOrder::depth_is_col : PackOrder::depth_is_row,
        .pack_right = !weight};  // x is new in every step
    const gpu::host::LibraryProduct product =
        gpu::host::make_library_product(call, right.data(), executor.thread_count());
    if (product) run_library = [this, product, &left] { product(left.data(), library.data()); };
  }

  // Both sums have the same terms, in another order; each result was rounded to its dtype once.
  void verify(double depth, double unit) {
    // Two sums of `depth` terms of up to 1, a quarter on average: Higham & Mary 2019 (10.1137/18M1226312).
    const double sum_error = 2 * 6 * std::sqrt(depth) * 0x1p-24 * depth / 4;
    for (size_t i = 0; i < own.count(); ++i) {
      const double difference = std::abs(own.at(i) - library.at(i));
      if (!(difference <= unit * std::abs(own.at(i)) + sum_error))
        throw Error(ErrorKind::runtime, std::string("matmul ") + name(direction) + ": element " +
                                            std::to_string(i) + " is " + std::to_string(own.at(i)) +
                                            ", the library has " + std::to_string(library.at(i)) + ".");
    }
  }

  LinearShape shape;
  Direction direction;
  Executor& executor;
  Matrix x, w, dy, own, library;
  Bytes packed, workspace;
  std::function<void()> run_own, run_library;
};

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

const char* name(Direction direction) {
  switch (direction) {
    case Direction::forward:
      return "forward";
    case Direction::backward_input:
      return "dgrad";
    case Direction::backward_weight:
      return "wgrad";
  }
  return "?";
}

MatmulSeconds matmul_seconds(const LinearShape& shape, Direction direction, DType dtype, Executor& executor,
                             int rounds) {
  Problem problem(shape, direction, dtype, executor);
  MatmulSeconds best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  problem.run_own();
  if (problem.run_library) {
    problem.run_library();
    const double depth = static_cast<double>(std::max({shape.tokens, shape.inputs, shape.outputs}));
    problem.verify(depth, dtype == DType::f32 || direction == Direction::backward_weight ? 0x1p-22 : 0x1p-7);
  }
  for (int round = 0; round < rounds; ++round) {
    best.own = std::min(best.own, seconds(problem.run_own));
    if (problem.run_library) best.library = std::min(best.library, seconds(problem.run_library));
  }
  return best;
}

}  // namespace sluice::bench
