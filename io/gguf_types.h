#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// A storage type of GGUF tensors (ggml.h, `enum ggml_type`; block layouts in ggml-common.h). A row is a
// sequence of blocks of `block_elements` elements, `block_bytes` each.
struct GgufType {
  uint32_t id;
  std::string_view name;
  uint32_t block_elements;
  uint32_t block_bytes;
  // Turns `block_count` blocks at `blocks`, of any alignment, into block_count * block_elements floats. Null
  // where the type is known by name only: to support it, write this function.
  void (*dequantize)(const std::byte* blocks, size_t block_count, float* out);
};

// Null for ids that no release of the format has.
const GgufType* find_gguf_type(uint32_t id);

}  // namespace sluice
