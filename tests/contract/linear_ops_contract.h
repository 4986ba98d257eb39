#pragma once

#include "tests/contract/ops_contract.h"

// Packing and the three matmuls of a linear layer: gpu/ops/linear.h. Elements are in [-1, 1].
namespace sluice::test {

class LinearOpsContract : public OpsContract {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearOpsContract);

struct LinearSize {
  int64_t tokens = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
};

// Around panels of 48, rows of 8, chunks of 64 rows, weight gradients of 96 rows; K around pairs and vectors.
inline std::vector<LinearSize> linear_sizes() {
  std::vector<LinearSize> sizes{{0, 16, 5},    {1, 1, 1},    {65, 600, 97},
                                {63, 48, 192}, {64, 96, 96}, {130, 17, 49}};
  for (int64_t outputs : {1, 5, 16, 47, 48, 49, 97}) sizes.push_back({3, 33, outputs});
  for (int64_t inputs : {1, 2, 15, 16, 17, 47, 48, 49}) sizes.push_back({9, inputs, 5});
  for (int64_t tokens : {1, 7, 8, 9, 63, 64, 65}) sizes.push_back({tokens, 10, 7});
  return sizes;
}

template <class Body>
void for_each_linear_size(const Body& body) {
  for (DType dtype : kComputeTypes) {
    for (LinearSize size : linear_sizes()) {
      SCOPED_TRACE(testing::Message()
                   << name(dtype) << " T " << size.tokens << " K " << size.inputs << " N " << size.outputs);
      body(dtype, size);
    }
  }
}

TEST_P(LinearOpsContract, Forward) {
  for_each_linear_size([&](DType dtype, LinearSize size) {
    for (DType out : {dtype, DType::f32}) {
      const bool has_addend = out == dtype;
      Trial trial;
      trial.add("x", random_matrix(random, dtype, size.tokens, size.inputs));
      trial.add("weight", random_matrix(random, dtype, size.outputs, size.inputs));
      trial.add("addend and y", random_matrix(random, out, size.tokens, size.outputs),
                after_sum(out, size.inputs + 1, 1));
      trial.program = [=](auto views, PackedBuffers& packed) -> std::vector<gpu::Op> {
        const auto weight = packed.make(size.outputs, size.inputs, dtype, gpu::WeightLayout::forward);
        return {gpu::LinearPack{{{views[1], {}}}, weight},
                gpu::LinearForward{views[0], weight, has_addend ? views[2] : gpu::View(), views[2]}};
      };
      expect(trial);
    }
  });
}

// Three tensors one above the other, in all the dtypes that storage may have: fp32, bf16, split halves.
TEST_P(LinearOpsContract, ForwardWithStackedSources) {
  for (DType dtype : kComputeTypes) {
    for (int64_t rows : {1, 16, 31, 50}) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " rows " << rows);
      constexpr int64_t kInputs = 37, kTokens = 5;
      Trial trial;
      trial.add("x", random_matrix(random, dtype, kTokens, kInputs));
      trial.add("fp32", random_matrix(random, DType::f32, rows, kInputs));
      trial.add("bf16", random_matrix(random, DType::bf16, rows + 1, kInputs));
      trial.add("high", random_matrix(random, DType::bf16, 7, kInputs));
      trial.add("low", random_matrix(random, DType::i16, 7, kInputs, -32768, 32767));
      const int64_t outputs = 2 * rows + 8;
      trial.add("y", Matrix(DType::f32, kTokens, outputs), after_sum(DType::f32, kInputs, 1));
      trial.program = [=](auto views, PackedBuffers& packed) -> std::vector<gpu::Op> {
        const auto weight = packed.make(outputs, kInputs, dtype, gpu::WeightLayout::forward);
        return {gpu::LinearPack{{{views[1], {}}, {views[2], {}}, {views[3], views[4]}}, weight},
                gpu::LinearForward{views[0], weight, {}, views[5]}};
      };
      expect(trial);
    }
  }
}

TEST_P(LinearOpsContract, BackwardInput) {
  for_each_linear_size([&](DType dtype, LinearSize size) {
    for (DType out : {dtype, DType::f32}) {
      for (bool accumulate : {false, true}) {
        if (accumulate && out != DType::f32) continue;
        Trial trial;
        trial.add("dy", random_matrix(random, dtype, size.tokens, size.outputs));
        trial.add("weight", random_matrix(random, dtype, size.outputs, size.inputs));
        trial.add("dx", random_matrix(random, out, size.tokens, size.inputs),
                  after_sum(out, size.outputs + 1, 1));
        trial.program = [=](auto views, PackedBuffers& packed) -> std::vector<gpu::Op> {
          const auto weight = packed.make(size.outputs, size.inputs, dtype, gpu::WeightLayout::backward);
          return {gpu::LinearPack{{{views[1], {}}}, weight},
                  gpu::LinearBackwardInput{views[0], weight, views[2], accumulate}};
        };
        expect(trial);
      }
    }
  });
}

TEST_P(LinearOpsContract, BackwardWeight) {
  for_each_linear_size([&](DType dtype, LinearSize size) {
    for (bool accumulate : {false, true}) {
      const bool nothing = accumulate && size.tokens == 0;
      Trial trial;
      trial.add("dy", random_matrix(random, dtype, size.tokens, size.outputs));
      trial.add("x", random_matrix(random, dtype, size.tokens, size.inputs));
      trial.add("dw", random_matrix(random, DType::f32, size.outputs, size.inputs),
                nothing ? Tolerance() : after_sum(DType::f32, size.tokens + 1, 1));
      trial.program = [=](auto views, PackedBuffers&) -> std::vector<gpu::Op> {
        return {gpu::LinearBackwardWeight{views[0], views[1], views[2], accumulate}};
      };
      expect(trial);
    }
  });
}

}  // namespace sluice::test
