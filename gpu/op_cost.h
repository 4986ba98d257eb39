#pragma once

#include "gpu/ops/ops.h"

namespace sluice::gpu {

// What an op asks of a GPU, by shapes and dtypes alone (pointers may be null): the two sides of the roofline
// (Williams, Waterman & Patterson 2009).
struct OpCost {
  double flops = 0;  // a multiply-add is two; exp, log, square root, division and comparison are one each
  DType rate = DType::f32;  // bf16: products of bf16 matrices, which tensor cores do; else fp32
  // Device memory read and written: each operand once, as a fused kernel with a large enough cache does. A
  // packed weight counts as a plain matrix of its dtype, whatever layout the device at hand keeps.
  double bytes = 0;
};

OpCost cost(const Op& op);

}  // namespace sluice::gpu
