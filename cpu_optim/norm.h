#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cpu_optim/float_view.h"
#include "engine/base/executor.h"

// The gradient's global norm, in an order that is a function of the logical index alone. A range is cut into
// chunks of kNormChunk elements; within a chunk, element i is squared and added in double to accumulator i %
// 32, and the 32 are added pairwise (j with j + 16, then + 8, ... + 1); chunks are added by tree_sum. The
// square of an fp32 is exact in double, so the bits are the same on every instruction set. inf and NaN go
// through to the norm.
namespace sluice::cpu_optim {

// 1 MiB of fp32.
inline constexpr int64_t kNormChunk = 262144;

constexpr int64_t norm_chunk_count(int64_t size) {
  return (size + kNormChunk - 1) / kNormChunk;
}

// Of one chunk: at most kNormChunk elements.
double sum_of_squares(FloatView chunk);

// chunk_sums[i] is the sum of squares of chunk i of the range; its size is norm_chunk_count(values.size()). A
// task a chunk. Pieces of a range may be summed in any order and at any time, as long as each begins at a
// chunk's beginning.
void sums_of_squares(Executor& executor, FloatView values, std::span<double> chunk_sums);

// A fixed binary tree: the left part takes the largest power of two that is less than the count. 0 of
// nothing.
double tree_sum(std::span<const double> values);

// What gradients are multiplied by: max_norm / (norm + 1e-6), at most 1, as torch.nn.utils.clip_grad_norm_
// does; computed in double and rounded once. nullopt for a norm that is not finite: the step is to be
// skipped, no state touched.
[[nodiscard]] std::optional<float> clip_coefficient(double norm, double max_norm);

}  // namespace sluice::cpu_optim
