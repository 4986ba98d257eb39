#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// Element types of tensors, wherever they live. `i16` is the low half of a split fp32 master.
enum class DType : uint8_t { f32, bf16, f16, i16, i32, i64, u8 };

constexpr size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::i16:
      return "int16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

}  // namespace sluice
