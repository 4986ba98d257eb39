#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// The 256 characters that stand for bytes in byte-level vocabularies: printable Latin-1 for itself, the rest
// from U+0100 on (bytes_to_unicode of OpenAI's GPT-2 encoder.py).
namespace sluice::byte_alphabet {

char32_t character(uint8_t byte);

// The byte that `character` stands for, or -1.
int byte(char32_t character);

// Every byte of `bytes` as its character, in UTF-8.
void append(std::string& out, std::string_view bytes);

}  // namespace sluice::byte_alphabet
