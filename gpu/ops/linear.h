#pragma once

#include <vector>

#include "gpu/view.h"

// T tokens, K inputs, N outputs. A weight W is (N, K), as Hugging Face stores it. Activations are fp32 or
// bf16, like the packed weight; products are summed in fp32. Results do not depend on the number of rows of
// one call (each row is computed alike), nor on threads.
namespace sluice::gpu {

// How a packed weight will be used: each direction has a layout of its own, which is the device's secret.
enum class WeightLayout { forward, backward };

// A weight in the layout that a device's matmul wants. `data` has Ops::packed_bytes(...) bytes.
struct PackedWeight {
  std::byte* data = nullptr;
  size_t size_bytes = 0;
  DType dtype = DType::f32;  // compute dtype: fp32 or bf16
  int64_t rows = 0;          // N
  int64_t cols = 0;          // K
  WeightLayout layout = WeightLayout::forward;
};

// Packs a weight whose rows come from one or several tensors, one above the other (q, k and v of an attention
// layer, gate and up). A source is fp32 or bf16; with `low` (int16), it is the split master of
// engine/base/float_bits.h and is joined to fp32 on the way. Sources are converted to the packed dtype (to
// bf16: nearest even; split: the high half).
struct LinearPack {
  static constexpr const char* kName = "linear_pack";
  struct Source {
    View high;  // (N_i, K)
    View low;   // (N_i, K) int16, or empty
  };
  std::vector<Source> sources;
  PackedWeight packed;
};

// y = x W^T (+ addend).
struct LinearForward {
  static constexpr const char* kName = "linear_forward";
  View x;  // (T, K)
  PackedWeight weight;
  View addend;  // (T, N) dtype of x, or empty. May be y.
  View y;       // (T, N) dtype of x, or fp32
};

// dx (+)= dy W.
struct LinearBackwardInput {
  static constexpr const char* kName = "linear_backward_input";
  View dy;                  // (T, N)
  PackedWeight weight;      // layout backward
  View dx;                  // (T, K) dtype of dy, or fp32
  bool accumulate = false;  // dx must be fp32 then
};

// dw (+)= dy^T x: all T tokens are one reduction, in order of fixed blocks that depend on T alone.
struct LinearBackwardWeight {
  static constexpr const char* kName = "linear_backward_weight";
  View dy;  // (T, N), may be some columns of a wider matrix
  View x;   // (T, K)
  View dw;  // (N, K) fp32
  bool accumulate = false;
};

}  // namespace sluice::gpu
