#include "apps/finetune/data/unicode_classes.h"

#include <algorithm>
#include <unicode/uchar.h>

namespace sluice {
namespace {

struct NamedClass {
  std::string_view name;
  std::span<const CodePointRange> ranges;
};

#include "apps/finetune/data/unicode_classes.inc"

}  // namespace

std::span<const CodePointRange> unicode_class(std::string_view name) {
  for (const NamedClass& entry : kClasses) {
    if (entry.name == name) return entry.ranges;
  }
  return {};
}

bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code_point,
                       [](char32_t value, const CodePointRange& range) { return value < range.first; });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

bool is_white_space(char32_t code_point) {
  return contains(kS, code_point);
}

bool is_word(char32_t code_point) {
  if (code_point < 0x80) {
    const char letter = static_cast<char>(code_point | 0x20);
    return (letter >= 'a' && letter <= 'z') || (code_point >= '0' && code_point <= '9') || code_point == '_';
  }
  if (contains(kPl, code_point) || contains(kPm, code_point)) return true;
  // Classes that the table lacks (Nd, Nl, Pc, Other_Alphabetic): from ICU, whose version may be a little
  // older.
  const auto value = static_cast<UChar32>(code_point);
  const uint32_t category = U_MASK(u_charType(value));
  return (category & (U_GC_ND_MASK | U_GC_NL_MASK | U_GC_PC_MASK)) != 0 || u_isUAlphabetic(value) ||
         code_point == 0x200c || code_point == 0x200d;
}

}  // namespace sluice
