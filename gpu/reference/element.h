#pragma once

#include "engine/base/float_bits.h"
#include "gpu/view.h"

// Elements of a view as double, whatever their dtype; rounded to nearest even when stored. For floating point
// and integer dtypes alike, on memory of the host.
namespace sluice::gpu::reference {

inline double load(const View& view, int64_t row, int64_t col) {
  switch (view.dtype) {
    case DType::f32:
      return view.row<float>(row)[col];
    case DType::bf16:
      return to_float(view.row<BFloat16>(row)[col]);
    case DType::f16:
      return to_float(view.row<Float16>(row)[col]);
    case DType::i16:
      return view.row<int16_t>(row)[col];
    case DType::i32:
      return view.row<int32_t>(row)[col];
    case DType::i64:
      return static_cast<double>(view.row<int64_t>(row)[col]);
    case DType::u8:
      return view.row<uint8_t>(row)[col];
  }
  return 0;
}

inline void store(const View& view, int64_t row, int64_t col, double value) {
  switch (view.dtype) {
    case DType::f32:
      view.row<float>(row)[col] = static_cast<float>(value);
      return;
    case DType::bf16:
      view.row<BFloat16>(row)[col] = to_bfloat16(static_cast<float>(value));
      return;
    case DType::f16:
      view.row<Float16>(row)[col] = to_float16(static_cast<float>(value));
      return;
    case DType::i16:
      view.row<int16_t>(row)[col] = static_cast<int16_t>(value);
      return;
    case DType::i32:
      view.row<int32_t>(row)[col] = static_cast<int32_t>(value);
      return;
    case DType::i64:
      view.row<int64_t>(row)[col] = static_cast<int64_t>(value);
      return;
    case DType::u8:
      view.row<uint8_t>(row)[col] = static_cast<uint8_t>(value);
      return;
  }
}

// `value` as it reads back from a view of this dtype.
inline double rounded(double value, DType dtype) {
  const float single = static_cast<float>(value);
  if (dtype == DType::bf16) return to_float(to_bfloat16(single));
  if (dtype == DType::f16) return to_float(to_float16(single));
  return single;
}

inline int64_t load_index(const View& view, int64_t row) {
  return view.row<int32_t>(row)[0];
}

}  // namespace sluice::gpu::reference
