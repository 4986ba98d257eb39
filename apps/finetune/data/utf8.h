#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 by hand: the tokenizer needs byte positions, which the libraries at hand hide. All functions are
// pure.
namespace sluice::utf8 {

inline constexpr size_t kValid = std::string_view::npos;

// Offset of the first byte that is not part of well-formed UTF-8 (Unicode 16, table 3-7), or kValid.
size_t first_invalid(std::string_view text);

inline bool is_continuation(char byte) {
  return (static_cast<uint8_t>(byte) & 0xc0) == 0x80;
}

// Bytes of the code point that starts with `lead`. Well-formed text only.
inline size_t length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The code point at `offset`, which is moved behind it. Well-formed text only.
char32_t next(std::string_view text, size_t& offset);

// The code point that ends at `offset` (> 0), which is moved to its start. Well-formed text only.
char32_t previous(std::string_view text, size_t& offset);

void append(std::string& text, char32_t code_point);

// Ill-formed parts replaced by U+FFFD, one for each maximal subpart, as Unicode recommends and Rust's
// from_utf8_lossy does.
std::string lossy(std::string_view bytes);

}  // namespace sluice::utf8
