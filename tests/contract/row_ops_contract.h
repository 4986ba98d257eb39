#pragma once

#include "tests/contract/ops_contract.h"

// SwiGLU, embedding and elementwise ops: gpu/ops/activation.h, embedding.h, elementwise.h.
namespace sluice::test {

class RowOpsContract : public OpsContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RowOpsContract);

// exp within 2 ulp, its argument exact, and five more operations: nothing cancels.
inline constexpr double kSigmoidSteps = 8;

TEST_P(RowOpsContract, SwigluForward) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    for (double range : {3.0, 120.0}) {  // far out, exp overflows and sigmoid is 0 or 1
      Trial trial;
      trial.add("gate_up", random_matrix(random, dtype, rows, 2 * cols, -range, range));
      trial.add("y", Matrix(dtype, rows, cols), after_steps(dtype, kSigmoidSteps + 2));
      trial.operands.back().tolerance.absolute += 120 * 120 * kSmallest;  // a sigmoid that was subnormal
      trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::SwigluForward{views[0], views[1]}};
      };
      expect(trial);
    }
  });
}

// dy up silu'(gate) has terms up to |dy up| (1 + |gate| / 4): 3 (1 + 1) = 6 here.
TEST_P(RowOpsContract, SwigluBackward) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    for (bool in_place : {false, true}) {
      const bool wants_y = !in_place || cols % 2 == 0;
      const Tolerance tolerance = after_cancelling(dtype, kSigmoidSteps + 4, 6);
      Trial trial;
      trial.add("gate_up", random_matrix(random, dtype, rows, 2 * cols, -3, 3),
                in_place ? tolerance : Tolerance());
      trial.add("dy", random_matrix(random, dtype, rows, cols));
      trial.add("d_gate_up", random_matrix(random, dtype, rows, 2 * cols),
                in_place ? Tolerance() : tolerance);
      trial.add("y", Matrix(dtype, rows, cols),
                wants_y ? after_steps(dtype, kSigmoidSteps + 2) : Tolerance());
      trial.program = [=](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::SwigluBackward{views[0], views[1], views[in_place ? 0 : 2],
                                    wants_y ? views[3] : gpu::View()}};
      };
      expect(trial);
    }
  });
}

// The forward's y and the one that backward makes once more are the same bits.
TEST_P(RowOpsContract, SwigluBackwardRepeatsForward) {
  for (DType dtype : kComputeTypes) {
    const Matrix gate_up = random_matrix(random, dtype, 9, 2 * 77, -5, 5);
    const Matrix dy = random_matrix(random, dtype, 9, 77);
    Matrix forward(dtype, 9, 77), again(dtype, 9, 77), d_gate_up(dtype, 9, 2 * 77);
    GetParam().runs.front()(gpu::SwigluForward{gate_up.view(), forward.view()});
    GetParam().runs.front()(gpu::SwigluBackward{gate_up.view(), dy.view(), d_gate_up.view(), again.view()});
    EXPECT_TRUE(forward.same_elements(again)) << name(dtype);
  }
}

TEST_P(RowOpsContract, GatherRows) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    std::vector<int32_t> index(static_cast<size_t>(rows));
    for (int32_t& row : index) row = static_cast<int32_t>(random() % 9);
    Trial trial;
    trial.add("table", random_matrix(random, dtype, 9, cols));
    trial.add("index", index_column(index));
    trial.add("y", Matrix(dtype, rows, cols));
    trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
      return {gpu::GatherRows{views[0], views[1], views[2]}};
    };
    expect(trial);
  });
}

TEST_P(RowOpsContract, ScatterRows) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    std::vector<int32_t> index(static_cast<size_t>(rows + 5));
    for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i);
    std::shuffle(index.begin(), index.end(), random);
    index.resize(static_cast<size_t>(rows));
    Trial trial;
    trial.add("x", random_matrix(random, dtype, rows, cols));
    trial.add("index", index_column(index));
    trial.add("y", random_matrix(random, dtype, rows + 5, cols));  // five rows keep their values
    trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
      return {gpu::ScatterRows{views[0], views[1], views[2]}};
    };
    expect(trial);
  });
}

// Some tokens belong to no row, some rows have no token.
TEST_P(RowOpsContract, EmbeddingBackward) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    constexpr int32_t kRows = 35;
    std::vector<std::vector<int32_t>> tokens(kRows);
    for (int64_t t = 0; t < rows; ++t)
      if (const auto row = random() % (kRows + 4); row % 5 != 0 && row < kRows)
        tokens[row].push_back(static_cast<int32_t>(t));
    std::vector<int32_t> order, begin{0};
    size_t most = 1;
    for (std::vector<int32_t>& list : tokens) {
      std::shuffle(list.begin(), list.end(), random);
      order.insert(order.end(), list.begin(), list.end());
      begin.push_back(static_cast<int32_t>(order.size()));
      most = std::max(most, list.size());
    }
    for (bool accumulate : {false, true}) {
      Trial trial;
      trial.add("dy", random_matrix(random, dtype, rows, cols));
      trial.add("order", index_column(order));
      trial.add("begin", index_column(begin));
      trial.add("d_rows", random_matrix(random, DType::f32, kRows, cols),
                after_sum(DType::f32, static_cast<int64_t>(most) + 1, 1));
      trial.program = [accumulate](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::EmbeddingBackward{views[0], views[1], views[2], views[3], accumulate}};
      };
      expect(trial);
    }
  });
}

inline constexpr std::array kFloatTypes{DType::f32, DType::bf16, DType::f16};

TEST_P(RowOpsContract, Cast) {
  for (DType from : kFloatTypes) {
    for (DType to : kFloatTypes) {
      for (Size size : row_sizes()) {
        SCOPED_TRACE(testing::Message()
                     << name(from) << " to " << name(to) << " " << size.rows << " x " << size.cols);
        Trial trial;
        trial.add("x", random_matrix(random, from, size.rows, size.cols, -100, 100));
        trial.add("y", Matrix(to, size.rows, size.cols));
        trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
          return {gpu::Cast{views[0], views[1]}};
        };
        expect(trial);
      }
    }
  }
}

// Every bit pattern of 16 bits, and fp32 on, beside and far from the ties of both narrow formats.
TEST_P(RowOpsContract, CastRoundsToNearestEven) {
  Matrix narrow(DType::u8, 1, 1 << 17);
  Matrix wide(DType::u8, 1, 1 << 18);
  auto* words = reinterpret_cast<uint16_t*>(narrow.view().data);
  auto* bits = reinterpret_cast<uint32_t*>(wide.view().data);
  for (uint32_t i = 0; i < (1u << 16); ++i) {
    constexpr std::array<uint32_t, 8> kLow{0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001};
    words[i] = static_cast<uint16_t>(i);
    bits[i] = (i << 16) | (random() % 4 == 0 ? static_cast<uint32_t>(random() & 0xffff) : kLow[random() % 8]);
  }
  for (DType from : kFloatTypes) {
    for (DType to : kFloatTypes) {
      SCOPED_TRACE(testing::Message() << name(from) << " to " << name(to));
      Trial trial;
      trial.add("x", Matrix(from, 1, 1 << 16));
      trial.add("y", Matrix(to, 1, 1 << 16), {0, std::numeric_limits<double>::denorm_min()});  // NaN differ
      const Matrix& source = from == DType::f32 ? wide : narrow;
      std::copy_n(source.view().data, source.view().span_bytes(), trial.operands[0].matrix.view().data);
      trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::Cast{views[0], views[1]}};
      };
      expect(trial);
    }
  }
}

TEST_P(RowOpsContract, AddScaleFill) {
  for_each_size([&](DType dtype, int64_t rows, int64_t cols) {
    for (size_t sum : {0, 1, 2}) {  // y may be a or b
      Trial trial;
      trial.add("a", random_matrix(random, dtype, rows, cols));
      trial.add("b", random_matrix(random, dtype, rows, cols));
      trial.add("y", random_matrix(random, dtype, rows, cols));
      trial.add("scaled", random_matrix(random, dtype, rows, cols));
      trial.add("filled", random_matrix(random, dtype, rows, cols));
      trial.add("cleared", random_matrix(random, DType::i16, rows, cols, -99, 99));
      trial.program = [sum](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::Add{views[0], views[1], views[sum]}, gpu::Scale{views[3], 0.3f},
                gpu::Fill{views[4], 1.7f}, gpu::Fill{views[5], 0}};
      };
      expect(trial);
    }
  });
}

// More than one piece of work, with a piece that ends within a vector.
TEST_P(RowOpsContract, ElementwiseOnLargeMatrices) {
  for (DType dtype : kComputeTypes) {
    for (Size size : {Size{1, 70001}, {70001, 1}, {300, 333}, {2, 40007}}) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " " << size.rows << " x " << size.cols);
      Trial trial;
      trial.add("x", random_matrix(random, dtype, size.rows, size.cols));
      trial.add("y", random_matrix(random, dtype, size.rows, size.cols));
      trial.add("cast", Matrix(dtype == DType::f32 ? DType::bf16 : DType::f32, size.rows, size.cols));
      trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::Add{views[0], views[1], views[1]}, gpu::Scale{views[1], -3},
                gpu::Cast{views[1], views[2]}};
      };
      expect(trial);
    }
  }
}

TEST_P(RowOpsContract, JoinSplit) {
  for (Size size : row_sizes()) {
    SCOPED_TRACE(testing::Message() << size.rows << " x " << size.cols);
    Trial trial;
    trial.add("high", random_matrix(random, DType::bf16, size.rows, size.cols, -9, 9));
    trial.add("low", random_matrix(random, DType::i16, size.rows, size.cols, -32768, 32767));
    trial.add("y", Matrix(DType::f32, size.rows, size.cols));
    trial.program = [](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
      return {gpu::JoinSplit{views[0], views[1], views[2]}};
    };
    expect(trial);
  }
}

}  // namespace sluice::test
