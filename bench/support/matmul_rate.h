#pragma once

#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/base/executor.h"

// What matmul alone costs on this machine, now: the limit that benches of whole steps are held against.
namespace sluice::bench {

enum class Direction { forward, backward_input, backward_weight };
const char* name(Direction direction);

// y (tokens, outputs) = x (tokens, inputs) W^T, or one of its gradients.
struct LinearShape {
  int64_t tokens = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  double flops() const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
  }
};

struct MatmulSeconds {
  double own = 0;      // the host's ops on packed weights, in tasks of the executor
  double library = 0;  // one whole call of the matmul library on as many threads; infinite where it lacks it
  double best() const { return own < library ? own : library; }
};

// Shortest of `rounds` runs of each, in turn. Verified first: throws Error where the two results differ by
// more than the dtype's rounding explains.
MatmulSeconds matmul_seconds(const LinearShape& shape, Direction direction, DType dtype, Executor& executor,
                             int rounds = 5);

}  // namespace sluice::bench
