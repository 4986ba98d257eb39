#pragma once

#include "gpu/view.h"

// T tokens, C channels. Activations x, y, dx, dy are fp32 or bf16 (all the same); arithmetic is fp32.
namespace sluice::gpu {

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon) per row (Zhang & Sennrich 2019,
// arXiv:1910.07467). As Hugging Face's LlamaRMSNorm: x * rstd is rounded to the activation dtype before the
// product with the weight.
struct RmsNormForward {
  static constexpr const char* kName = "rms_norm_forward";
  View x;       // (T, C)
  View weight;  // (1, C), dtype of x
  View y;       // (T, C)
  View rstd;    // (T, 1) fp32, or empty: not wanted
  float epsilon = 0;
};

// dx = addend + gradient through the norm; dweight (+)= sum over rows. Rows are summed in fixed ranges of 64,
// the ranges in order. dx may be dy or addend.
struct RmsNormBackward {
  static constexpr const char* kName = "rms_norm_backward";
  View dy;                  // (T, C)
  View x;                   // (T, C)
  View weight;              // (1, C)
  View rstd;                // (T, 1) fp32
  View addend;              // (T, C) or empty: gradient that arrives at x by another way (the residual)
  View dx;                  // (T, C)
  View dweight;             // (1, C) fp32, or empty: a frozen weight
  bool accumulate = false;  // add to dweight instead of overwriting it
};

}  // namespace sluice::gpu
