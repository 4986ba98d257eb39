#pragma once

#include "gpu/view.h"

namespace sluice::gpu {

// y = x in y's dtype (to bf16 and fp16: nearest even). fp32, bf16 and fp16 in any pair.
struct Cast {
  static constexpr const char* kName = "cast";
  View x, y;  // (R, C)
};

// y = a + b in fp32, rounded to y's dtype. fp32 or bf16, all three alike. y may be a or b.
struct Add {
  static constexpr const char* kName = "add";
  View a, b, y;  // (R, C)
};

// x *= factor, fp32 or bf16.
struct Scale {
  static constexpr const char* kName = "scale";
  View x;
  float factor = 1;
};

// All elements become `value`, fp32 or bf16; other dtypes: zero bytes, value must be 0.
struct Fill {
  static constexpr const char* kName = "fill";
  View x;
  float value = 0;
};

// The fp32 master from its halves (engine/base/float_bits.h).
struct JoinSplit {
  static constexpr const char* kName = "join_split";
  View high;  // (R, C) bf16
  View low;   // (R, C) int16
  View y;     // (R, C) fp32
};

}  // namespace sluice::gpu
