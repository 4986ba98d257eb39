#pragma once

#include <span>
#include <string_view>

namespace sluice {

// Both ends belong to the range.
struct CodePointRange {
  char32_t first;
  char32_t last;
};

// Sorted ranges of "L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "Han" or "s" (white space), as
// Hugging Face's tokenizers see them; also "hf_numeric", "hf_punctuation" and "hf_word", which are what their
// Digits, Punctuation and single_word take. Empty for any other name. A tokenizer must use these wherever the
// system's Unicode version differs, or ids differ.
std::span<const CodePointRange> unicode_class(std::string_view name);

bool contains(std::span<const CodePointRange> ranges, char32_t code_point);

// White_Space, 25 code points.
bool is_white_space(char32_t code_point);

// A character that must not touch an added token with single_word.
bool is_word(char32_t code_point);

}  // namespace sluice
