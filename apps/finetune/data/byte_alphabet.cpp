#include "apps/finetune/data/byte_alphabet.h"

#include <array>

#include "apps/finetune/data/utf8.h"

namespace sluice::byte_alphabet {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

constexpr std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> table{};
  char32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) table[b] = stands_for_itself(b) ? b : next++;
  return table;
}

constexpr std::array<char32_t, 256> kCharacters = make_characters();
constexpr char32_t kEnd = 0x144;  // one behind the last character

constexpr std::array<int16_t, kEnd> make_bytes() {
  std::array<int16_t, kEnd> table{};
  table.fill(-1);
  for (uint32_t b = 0; b < 256; ++b) table[kCharacters[b]] = static_cast<int16_t>(b);
  return table;
}

constexpr std::array<int16_t, kEnd> kBytes = make_bytes();

}  // namespace

char32_t character(uint8_t byte) {
  return kCharacters[byte];
}

int byte(char32_t character) {
  return character < kEnd ? kBytes[character] : -1;
}

void append(std::string& out, std::string_view bytes) {
  for (const char b : bytes) utf8::append(out, kCharacters[static_cast<uint8_t>(b)]);
}

}  // namespace sluice::byte_alphabet
