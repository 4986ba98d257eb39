#include "io/gguf_types.h"

#include <array>
#include <cstring>

#include "engine/base/float_bits.h"

namespace sluice {
namespace {

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
void dequantize_plain(const std::byte* blocks, size_t block_count, float* out) {
  for (size_t i = 0; i < block_count; ++i) {
    if constexpr (sizeof(T) == sizeof(float)) {
      out[i] = load<float>(blocks + i * sizeof(float));
    } else {
      out[i] = to_float(load<T>(blocks + i * sizeof(T)));
    }
  }
}

// fp16 scale d, fp16 minimum m, 16 bytes: element j is the low half of byte j, element j + 16 its high half.
// x = q * d + m, each operation rounded to fp32 (as gguf-py does).
void dequantize_q4_1(const std::byte* blocks, size_t block_count, float* out) {
  for (size_t block = 0; block < block_count; ++block, blocks += 20, out += 32) {
    const float scale = to_float(load<Float16>(blocks));
    const float minimum = to_float(load<Float16>(blocks + 2));
    for (size_t j = 0; j < 16; ++j) {
      const auto pair = std::to_integer<unsigned>(blocks[4 + j]);
      out[j] = static_cast<float>(pair & 15) * scale + minimum;
      out[j + 16] = static_cast<float>(pair >> 4) * scale + minimum;
    }
  }
}

// fp16 scale d, 32 signed bytes. x = q * d.
void dequantize_q8_0(const std::byte* blocks, size_t block_count, float* out) {
  for (size_t block = 0; block < block_count; ++block, blocks += 34, out += 32) {
    const float scale = to_float(load<Float16>(blocks));
    for (size_t j = 0; j < 32; ++j) out[j] = static_cast<float>(load<int8_t>(blocks + 2 + j)) * scale;
  }
}

constexpr std::array<GgufType, 33> kTypes = {{
    {0, "F32", 1, 4, dequantize_plain<float>},
    {1, "F16", 1, 2, dequantize_plain<Float16>},
    {2, "Q4_0", 32, 18, nullptr},
    {3, "Q4_1", 32, 20, dequantize_q4_1},
    {6, "Q5_0", 32, 22, nullptr},
    {7, "Q5_1", 32, 24, nullptr},
    {8, "Q8_0", 32, 34, dequantize_q8_0},
    {9, "Q8_1", 32, 36, nullptr},
    {10, "Q2_K", 256, 84, nullptr},
    {11, "Q3_K", 256, 110, nullptr},
    {12, "Q4_K", 256, 144, nullptr},
    {13, "Q5_K", 256, 176, nullptr},
    {14, "Q6_K", 256, 210, nullptr},
    {15, "Q8_K", 256, 292, nullptr},
    {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},
    {18, "IQ3_XXS", 256, 98, nullptr},
    {19, "IQ1_S", 256, 50, nullptr},
    {20, "IQ4_NL", 32, 18, nullptr},
    {21, "IQ3_S", 256, 110, nullptr},
    {22, "IQ2_S", 256, 82, nullptr},
    {23, "IQ4_XS", 256, 136, nullptr},
    {24, "I8", 1, 1, nullptr},
    {25, "I16", 1, 2, nullptr},
    {26, "I32", 1, 4, nullptr},
    {27, "I64", 1, 8, nullptr},
    {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},
    {30, "BF16", 1, 2, dequantize_plain<BFloat16>},
    {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},
    {39, "MXFP4", 32, 17, nullptr},
    {40, "NVFP4", 64, 36, nullptr},
}};

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace sluice
