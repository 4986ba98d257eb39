#include "io/gguf_types.h"

#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

namespace sluice {
namespace {

// A byte off the alignment of everything, so that a load that needs one is caught.
std::vector<float> dequantize(uint32_t id, const std::string& blocks) {
  const GgufType& type = *find_gguf_type(id);
  const std::string shifted = "x" + blocks;
  const size_t count = blocks.size() / type.block_bytes;
  std::vector<float> values(count * type.block_elements, -1.0F);
  type.dequantize(reinterpret_cast<const std::byte*>(shifted.data() + 1), count, values.data());
  return values;
}

std::string word(uint16_t bits) {
  return {reinterpret_cast<const char*>(&bits), sizeof(bits)};
}

TEST(GgufTypes, ReadsPlainNumbers) {
  const float third = 1.0F / 3;
  EXPECT_EQ(dequantize(0, std::string(reinterpret_cast<const char*>(&third), 4)), std::vector<float>{third});
  EXPECT_EQ(dequantize(1, word(0x3c00) + word(0xc500) + word(0x0001)),  // fp16 1, -5, smallest
            (std::vector<float>{1.0F, -5.0F, std::ldexp(1.0F, -24)}));
  EXPECT_EQ(dequantize(30, word(0x3f80) + word(0xc0a0)), (std::vector<float>{1.0F, -5.0F}));  // bf16
}

// Two blocks: scale 2, minimum -3; scale 0.5, minimum 0.
TEST(GgufTypes, ReadsQ41) {
  std::string blocks = word(0x4000) + word(0xc200);
  for (int j = 0; j < 16; ++j) blocks += static_cast<char>(j | (15 - j) << 4);
  blocks += word(0x3800) + word(0x0000) + std::string(16, '\x1f');
  const std::vector<float> values = dequantize(3, blocks);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(values[static_cast<size_t>(j)], 2.0F * static_cast<float>(j) - 3.0F);
    EXPECT_EQ(values[static_cast<size_t>(j + 16)], 2.0F * static_cast<float>(15 - j) - 3.0F);
    EXPECT_EQ(values[static_cast<size_t>(j + 32)], 7.5F);
    EXPECT_EQ(values[static_cast<size_t>(j + 48)], 0.5F);
  }
}

TEST(GgufTypes, ReadsQ80) {
  std::string block = word(0x3400);  // 0.25
  for (int j = 0; j < 32; ++j) block += static_cast<char>(j * 8 - 128);
  const std::vector<float> values = dequantize(8, block);
  for (int j = 0; j < 32; ++j)
    EXPECT_EQ(values[static_cast<size_t>(j)], 0.25F * static_cast<float>(j * 8 - 128));
}

TEST(GgufTypes, KnowsEveryTypeOnce) {
  std::set<std::string_view> names;
  size_t count = 0;
  for (uint32_t id = 0; id < 1000; ++id) {
    const GgufType* type = find_gguf_type(id);
    if (type == nullptr) continue;
    ++count;
    names.insert(type->name);
    EXPECT_EQ(type->id, id);
    EXPECT_GT(type->block_bytes, 0U);
  }
  EXPECT_EQ(names.size(), count);
  for (const uint32_t removed : {4U, 5U, 31U, 36U})
    EXPECT_EQ(find_gguf_type(removed), nullptr);  // of old ggml.h
  EXPECT_EQ(find_gguf_type(~0U), nullptr);
}

}  // namespace
}  // namespace sluice
