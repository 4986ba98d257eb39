#include "apps/finetune/model/weight_convert.h"

#include <cstring>

#include "engine/base/error.h"
#include "engine/base/float_bits.h"

namespace sluice {

void load_as_float(DType stored, const void* from, size_t count, float* to) {
  if (stored == DType::bf16) {
    const auto* values = static_cast<const BFloat16*>(from);
    for (size_t i = 0; i < count; ++i) to[i] = to_float(values[i]);
  } else if (stored == DType::f16) {
    const auto* values = static_cast<const Float16*>(from);
    for (size_t i = 0; i < count; ++i) to[i] = to_float(values[i]);
  } else {
    SLUICE_CHECK(stored == DType::f32);
    std::memcpy(to, from, count * sizeof(float));
  }
}

void store_from_float(DType stored, const float* from, size_t count, void* to) {
  if (stored == DType::bf16) {
    auto* values = static_cast<BFloat16*>(to);
    for (size_t i = 0; i < count; ++i) values[i] = to_bfloat16(from[i]);
  } else if (stored == DType::f16) {
    auto* values = static_cast<Float16*>(to);
    for (size_t i = 0; i < count; ++i) values[i] = to_float16(from[i]);
  } else {
    SLUICE_CHECK(stored == DType::f32);
    std::memcpy(to, from, count * sizeof(float));
  }
}

}  // namespace sluice
