#include "apps/finetune/data/unicode_classes.h"

#include <algorithm>
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
  return contains(kHfword, code_point);
}

}  // namespace sluice
