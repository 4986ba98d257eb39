#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/base/float_bits.h"

namespace sluice::cpu_optim {

// Read-only range of fp32 or bf16 numbers, for example a gradient as it came from the device. Owns nothing;
// aligned to its element, no more.
class FloatView {
 public:
  template <class Range>
  requires std::convertible_to<const Range&, std::span<const float>> FloatView(const Range& values)
      : FloatView(DType::f32, std::span<const float>(values)) {}  // NOLINT: implicit

  template <class Range>
  requires std::convertible_to<const Range&, std::span<const BFloat16>> FloatView(const Range& values)
      : FloatView(DType::bf16, std::span<const BFloat16>(values)) {}  // NOLINT: implicit

  FloatView(DType dtype, const void* data, int64_t size) : dtype_(dtype), data_(data), size_(size) {
    SLUICE_CHECK(dtype == DType::f32 || dtype == DType::bf16);
    SLUICE_CHECK(size >= 0);
  }

  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }
  const float* fp32() const {
    SLUICE_CHECK(dtype_ == DType::f32);
    return static_cast<const float*>(data_);
  }
  const BFloat16* bf16() const {
    SLUICE_CHECK(dtype_ == DType::bf16);
    return static_cast<const BFloat16*>(data_);
  }

  FloatView subrange(int64_t begin, int64_t count) const {
    SLUICE_CHECK(0 <= begin && begin <= size_ && 0 <= count && count <= size_ - begin);
    if (dtype_ == DType::f32) return {dtype_, fp32() + begin, count};
    return {dtype_, bf16() + begin, count};
  }

 private:
  template <class T>
  FloatView(DType dtype, std::span<const T> values)
      : FloatView(dtype, values.data(), static_cast<int64_t>(values.size())) {}

  DType dtype_;
  const void* data_;
  int64_t size_;
};

}  // namespace sluice::cpu_optim
