// Oniguruma's Ruby syntax, as tokenizer.json files use it, to PCRE2.

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <unordered_map>
#include <vector>

#include "apps/finetune/data/regex.h"
#include "apps/finetune/data/unicode_classes.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace sluice {
namespace {

using Ranges = std::vector<CodePointRange>;

constexpr char32_t kLast = 0x10ffff;
// Planes 4 to 13 are unassigned in every version so far, 15 and 16 private: nothing there belongs to a class
// of ours.
constexpr CodePointRange kScanned[] = {{0, 0xd7ff}, {0xe000, 0x3ffff}, {0xe0000, 0xe0fff}};

// Every scanned code point that PCRE2 itself takes for `escape`. Takes 10 ms: see Classes.
Ranges find_pcre2_class(const std::string& escape) {
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(escape.data()), escape.size(), PCRE2_UTF | PCRE2_UCP, &error,
                    &offset, nullptr),
      &pcre2_code_free);
  if (!code) return {};
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  std::string all;
  for (const CodePointRange& range : kScanned) {
    for (char32_t c = range.first; c <= range.last; ++c) utf8::append(all, c);
  }
  Ranges found;
  size_t from = 0;
  while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(all.data()), all.size(), from,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
    const size_t* const ends = pcre2_get_ovector_pointer(match.get());
    size_t offset_in_all = ends[0];
    while (offset_in_all < ends[1]) {
      const char32_t c = utf8::next(all, offset_in_all);
      if (!found.empty() && found.back().last + 1 == c) {
        found.back().last = c;
      } else {
        found.push_back({c, c});
      }
    }
    from = ends[1];
  }
  return found;
}

// What was found, for one pattern: it may name a class a thousand times.
class Classes {
 public:
  const Ranges& pcre2_class(const std::string& escape) {
    const auto [found, is_new] = known_.try_emplace(escape);
    if (is_new) found->second = find_pcre2_class(escape);
    return found->second;
  }

 private:
  std::unordered_map<std::string, Ranges> known_;
};

Ranges complement(std::span<const CodePointRange> ranges) {
  Ranges result;
  char32_t next = 0;
  for (const CodePointRange& range : ranges) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) result.push_back({next, kLast});
  return result;
}

Ranges minus(std::span<const CodePointRange> left, std::span<const CodePointRange> right) {
  Ranges result;
  const Ranges keep = complement(right);
  for (const CodePointRange& range : left) {
    for (const CodePointRange& other : keep) {
      const char32_t first = std::max(range.first, other.first);
      const char32_t last = std::min(range.last, other.last);
      if (first <= last) result.push_back({first, last});
    }
  }
  return result;
}

std::string inside_brackets(std::span<const CodePointRange> ranges) {
  std::string text;
  const auto put = [&text](char32_t c) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "\\x{%x}", static_cast<unsigned>(c));
    text += buffer;
  };
  for (CodePointRange range : ranges) {
    put(range.first);
    if (range.last > range.first) {
      text += '-';
      put(range.last);
    }
  }
  return text;
}

// A byte that ASCII text never holds stands for every other character: one atom as well, and inside brackets
// too.
const char* const kNeverInAscii = "\\xff";

// What stands inside [...] for the class `name` of the oracle. PCRE2's own property where that, with a few
// ranges added, comes to the same: it is looked up in a table, while ranges are tried one after the other.
std::string class_text(std::string_view name, bool negated, RegexText text, Classes& classes) {
  const std::span<const CodePointRange> wanted = unicode_class(name);
  if (text == RegexText::ascii) {
    const Ranges ascii = minus(wanted, std::array{CodePointRange{0x80, kLast}});
    if (negated) return inside_brackets(minus(complement(ascii), std::array{CodePointRange{0x100, kLast}}));
    return ascii.empty() ? kNeverInAscii : inside_brackets(ascii);
  }
  if (name == "s")
    return inside_brackets(negated ? complement(wanted) : Ranges(wanted.begin(), wanted.end()));
  const std::string property = "p{" + std::string(name) + "}";
  const Ranges& known = classes.pcre2_class("\\" + property + "+");
  const Ranges missing = minus(wanted, known);
  const Ranges surplus = minus(known, wanted);
  if (known.empty())
    return inside_brackets(negated ? complement(wanted) : Ranges(wanted.begin(), wanted.end()));
  if (!negated) return surplus.empty() ? "\\" + property + inside_brackets(missing) : inside_brackets(wanted);
  return missing.empty() ? "\\P" + property.substr(1) + inside_brackets(surplus)
                         : inside_brackets(complement(wanted));
}

// Oniguruma's \w: Alphabetic, marks, decimal digits, connector punctuation. PCRE2's is narrower.
const char* const kWord = "\\p{Alphabetic}\\p{L}\\p{M}\\p{Nd}\\p{Pc}";

class Rewriter {
 public:
  Rewriter(std::string_view pattern, RegexText text) : pattern_(pattern), text_(text) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    if (in_class_) refuse("a character class is not closed");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::data, "the pattern " + std::string(pattern_) + " cannot be used: " + why);
  }

  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void step() {
    const char c = pattern_[at_];
    if (c == '\\') return escape();
    if (text_ == RegexText::ascii && static_cast<uint8_t>(c) >= 0x80) {
      out_ += kNeverInAscii;
      at_ += utf8::length(c);
      return;
    }
    if (in_class_) return class_character(c);
    if (c == '[') return open_class();
    if (c == '(' && follows("(?")) check_group();
    copy(1);
  }

  void copy(size_t count) {
    out_.append(pattern_.substr(at_, count));
    at_ += count;
  }

  void open_class() {
    in_class_ = true;
    copy(1);
    if (follows("^")) copy(1);
    if (follows("]")) {  // literal when it comes first
      out_ += "\\]";
      ++at_;
    }
  }

  void class_character(char c) {
    if (follows("[:")) {
      const size_t end = pattern_.find(":]", at_);
      if (end != std::string_view::npos) return copy(end + 2 - at_);
    }
    if (c == '[') refuse("character classes inside character classes are not supported");
    if (follows("&&")) refuse("intersections of character classes (&&) are not supported");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  // Ruby's (?m) is not PCRE2's.
  void check_group() const {
    size_t i = at_ + 2;
    while (i < pattern_.size() &&
           (std::isalpha(static_cast<unsigned char>(pattern_[i])) || pattern_[i] == '-')) {
      if (pattern_[i] == 'm') refuse("the option (?m) is not supported");
      ++i;
      if (i - at_ > 8) return;
    }
  }

  const char* word() const { return text_ == RegexText::ascii ? "A-Za-z0-9_" : kWord; }

  void put_class(const std::string& inside) { out_ += in_class_ ? inside : "[" + inside + "]"; }

  void escape() {
    if (at_ + 1 >= pattern_.size()) refuse("it ends in a backslash");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') return property(c == 'P');
    const auto replace = [this](const std::string& text) {
      out_ += text;
      at_ += 2;
    };
    switch (c) {
      case 's':
      case 'S':
        put_class(class_text("s", c == 'S', text_, classes_));
        at_ += 2;
        return;
      case 'w':
        put_class(word());
        at_ += 2;
        return;
      case 'W':
        if (in_class_) refuse("\\W inside a character class is not supported");
        return replace("[^" + std::string(word()) + "]");
      case 'h':  // a hexadecimal digit in Ruby, horizontal space in PCRE2
        put_class("0-9a-fA-F");
        at_ += 2;
        return;
      case 'v':  // one character in Ruby, a class in PCRE2
        return replace("\\x0b");
      case 'u':
        return code_unit();
      default:
        break;
    }
    if (c == 'x' && text_ == RegexText::ascii && hexadecimal_beyond_ascii()) return;
    if (std::string_view("HRXKGyYONCQE").find(c) != std::string_view::npos)
      refuse(std::string("the escape \\") + c + " is not supported");
    copy(2);
  }

  // \xHH or \x{H...} over 0x7f; taken if it is one.
  bool hexadecimal_beyond_ascii() {
    const size_t brace = at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{' ? 1 : 0;
    size_t end = at_ + 2 + brace;
    uint32_t value = 0;
    while (end < pattern_.size() && std::isxdigit(static_cast<unsigned char>(pattern_[end])) != 0 &&
           (brace == 1 || end < at_ + 4)) {
      value = std::min<uint32_t>(value, 0xffffff) * 16 +
              static_cast<uint32_t>(std::stoi(std::string(1, pattern_[end++]), nullptr, 16));
    }
    if (value < 0x80) return false;
    out_ += kNeverInAscii;
    at_ = std::min(end + brace, pattern_.size());
    return true;
  }

  void code_unit() {
    const std::string_view digits = pattern_.substr(std::min(at_ + 2, pattern_.size()), 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      refuse("\\u wants four hexadecimal digits");
    const bool beyond = text_ == RegexText::ascii && std::stoi(std::string(digits), nullptr, 16) >= 0x80;
    out_ += beyond ? kNeverInAscii : "\\x{" + std::string(digits) + "}";
    at_ += 6;
  }

  void property(bool negated) {
    std::string_view name = pattern_.substr(std::min(at_ + 2, pattern_.size()));
    if (name.starts_with("{")) {
      const size_t end = name.find('}');
      if (end == std::string_view::npos) refuse("\\p{ is not closed");
      name = name.substr(1, end - 1);
      at_ += 2 + end + 1;
    } else {
      name = name.substr(0, 1);
      at_ += 3;
    }
    if (name.starts_with("^")) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (!unicode_class(name).empty()) return put_class(class_text(name, negated, text_, classes_));
    // A script: PCRE2 would take Script_Extensions, Oniguruma takes Script.
    std::string text = (negated ? "\\P{" : "\\p{") + std::string(name) + "}";
    if (name.size() > 2) {
      const std::string script = (negated ? "\\P{sc:" : "\\p{sc:") + std::string(name) + "}";
      if (!classes_.pcre2_class(script + "+").empty()) text = script;
    }
    put_class(text);
  }

  std::string_view pattern_;
  RegexText text_;
  std::string out_;
  Classes classes_;
  size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string rewrite_for_pcre2(std::string_view pattern, RegexText text) {
  return Rewriter(pattern, text).run();
}

}  // namespace sluice
