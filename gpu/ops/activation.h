#pragma once

#include "gpu/view.h"

namespace sluice::gpu {

// y = silu(gate) * up, silu(x) = x / (1 + exp(-x)) (Shazeer 2020, arXiv:2002.05202). fp32 or bf16, arithmetic
// fp32.
struct SwigluForward {
  static constexpr const char* kName = "swiglu_forward";
  View gate_up;  // (T, 2F): gate, then up
  View y;        // (T, F)
};

struct SwigluBackward {
  static constexpr const char* kName = "swiglu_backward";
  View gate_up;    // (T, 2F)
  View dy;         // (T, F)
  View d_gate_up;  // (T, 2F); may be gate_up
  View y;          // (T, F) or empty: the forward's result once more (the weight gradient of `down` needs it)
};

}  // namespace sluice::gpu
