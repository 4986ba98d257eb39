#include "apps/finetune/data/utf8.h"

#include <cstring>

namespace sluice::utf8 {
namespace {

struct Sequence {
  size_t length;  // of the code point, or of the maximal ill-formed subpart
  bool valid;
};

// The sequence at the start of `text`, which is not empty.
Sequence scan(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const size_t wanted = length(text[0]);
  // The second byte alone decides about overlong forms, surrogates and the end of Unicode.
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < wanted; ++i) {
    if (i >= text.size()) return {i, false};
    const auto byte = static_cast<uint8_t>(text[i]);
    const bool fits = i == 1 ? byte >= low && byte <= high : (byte & 0xc0) == 0x80;
    if (!fits) return {i, false};
  }
  return {wanted, true};
}

}  // namespace

size_t first_invalid(std::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    if (offset + 8 <= text.size()) {  // eight ASCII bytes at once
      uint64_t chunk;
      std::memcpy(&chunk, text.data() + offset, sizeof chunk);
      if ((chunk & 0x8080808080808080u) == 0) {
        offset += 8;
        continue;
      }
    }
    const Sequence sequence = scan(text.substr(offset, 4));
    if (!sequence.valid) return offset;
    offset += sequence.length;
  }
  return kValid;
}

char32_t next(std::string_view text, size_t& offset) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[offset + i])); };
  const uint32_t lead = byte(0);
  uint32_t code_point = lead;
  const size_t size = length(text[offset]);
  if (size == 2) code_point = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  if (size == 3) code_point = (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  if (size == 4)
    code_point = (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  offset += size;
  return code_point;
}

char32_t previous(std::string_view text, size_t& offset) {
  do {
    --offset;
  } while (is_continuation(text[offset]));
  size_t start = offset;
  return next(text, start);
}

void append(std::string& text, char32_t code_point) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(static_cast<uint8_t>(byte))); };
  const uint32_t value = code_point;
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xc0 | value >> 6);
  } else if (value < 0x10000) {
    put(0xe0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3f));
  } else {
    put(0xf0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3f));
    put(0x80 | (value >> 6 & 0x3f));
  }
  put(0x80 | (value & 0x3f));
}

std::string lossy(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t bad = first_invalid(bytes);
    text.append(bytes.substr(0, bad));
    if (bad == kValid) break;
    text.append("\xef\xbf\xbd");
    bytes.remove_prefix(bad + scan(bytes.substr(bad, 4)).length);
  }
  return text;
}

}  // namespace sluice::utf8
