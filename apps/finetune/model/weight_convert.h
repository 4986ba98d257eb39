#pragma once

#include <cstddef>

#include "engine/base/dtype.h"

namespace sluice {

// Converts `count` numbers between fp32 and the dtypes that weight files use (bf16, f16, f32; others:
// SLUICE_CHECK). Storing rounds to nearest, ties to even; what is too large for f16 becomes infinity.
void load_as_float(DType stored, const void* from, size_t count, float* to);
void store_from_float(DType stored, const float* from, size_t count, void* to);

}  // namespace sluice
