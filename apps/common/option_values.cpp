#include "apps/common/option_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "engine/base/error.h"

namespace sluice {
namespace {

std::string quoted(std::string_view text) {
  std::string quoted_text(1, '\'');
  quoted_text.append(text).push_back('\'');
  return quoted_text;
}

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::usage, message);
}

// Shortest text that reads back as the same number.
std::string number_text(double value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), result.ptr);
  if (const size_t zero = text.find("e-0"); zero != std::string::npos)
    text.erase(zero + 2, 1);  // 2e-05 -> 2e-5
  return text;
}

std::string range_text(const Range& range) {
  const bool below = std::isfinite(range.maximum);
  const std::string least =
      (range.ends == Range::Ends::open ? "above " : "at least ") + number_text(range.minimum);
  const std::string most =
      (range.ends == Range::Ends::closed ? "at most " : "below ") + number_text(range.maximum);
  if (!std::isfinite(range.minimum)) return most;
  return below ? least + " and " + most : least;
}

void check_range(std::string_view text, double value, const Range& range) {
  const bool low = range.ends == Range::Ends::open ? value <= range.minimum : value < range.minimum;
  const bool high = range.ends == Range::Ends::closed ? value > range.maximum : value >= range.maximum;
  if (low || high) fail(quoted(text) + " is out of range: it must be " + range_text(range) + ".");
}

// 0: no such unit.
double unit_bytes(std::string unit) {
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string_view("kmgt").find(unit[0]);
  if (power == std::string_view::npos) return 0;
  const std::string rest = unit.substr(1);
  if (rest.empty() || rest == "ib") return std::pow(1024.0, static_cast<double>(power + 1));
  return rest == "b" ? std::pow(1000.0, static_cast<double>(power + 1)) : 0;
}

uint64_t parse_seed(std::string_view text) {
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size()) {
    fail(quoted(text) + " is not a seed. Give a whole number from 0 to 2^64 - 1, like 42.");
  }
  return value;
}

// Typing errors between two words: insertions, deletions, replacements, swaps of neighbours (optimal string
// alignment, https://en.wikipedia.org/wiki/Damerau-Levenshtein_distance).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

double parse_real(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size() ||
      !std::isfinite(value)) {
    fail(quoted(text) + " is not a number. Write it like 0.00002 or 2e-5.");
  }
  return value;
}

int64_t parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!text.empty() && result.ec == std::errc() && result.ptr == text.data() + text.size()) return value;
  double real = 0;  // "1e3" is a whole number too
  const auto real_result = std::from_chars(text.data(), text.data() + text.size(), real);
  const bool is_number =
      !text.empty() && real_result.ec == std::errc() && real_result.ptr == text.data() + text.size();
  constexpr double kExactLimit = 9007199254740992.0;  // 2^53: up to here a double holds every whole number
  if (!is_number || std::abs(real) > kExactLimit || real != std::trunc(real)) {
    fail(quoted(text) + " is not a whole number. Write it like 100.");
  }
  return static_cast<int64_t>(real);
}

uint64_t parse_size(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(result.ptr, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' ') == std::string::npos ? unit.size() : unit.find_first_not_of(' '));
  const double factor = unit_bytes(unit);
  if (text.empty() || result.ec != std::errc() || factor == 0 || !std::isfinite(value)) {
    fail(quoted(text) + " is not a size. Write it like 512MiB, 2GiB, 1.5GB or 1048576 (bytes).");
  }
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (value < 0 || value * factor >= kLimit)
    fail(quoted(text) + " is out of range: a size is 0 to 2^63 - 1 bytes.");
  return static_cast<uint64_t>(std::llround(value * factor));
}

bool parse_boolean(std::string_view text) {
  for (const char* word : {"true", "yes", "on", "1"})
    if (text == word) return true;
  for (const char* word : {"false", "no", "off", "0"})
    if (text == word) return false;
  fail(quoted(text) + " is neither true nor false.");
}

std::string size_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  std::array<char, 48> buffer;
  const int digits = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  std::string text(buffer.data(),
                   static_cast<size_t>(std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value)));
  if (digits > 0) {  // 1.50 -> 1.5, 2.00 -> 2
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text + " " + kUnits[unit];
}

OptionValue real_value(double& target, Range range) {
  return {.argument = "X",
          .default_text = number_text(target),
          .implicit = "",
          .words = {},
          .assign = [&target, range](std::string_view text) {
            const double value = parse_real(text);
            check_range(text, value, range);
            target = value;
          }};
}

OptionValue integer_value(int64_t& target, Range range) {
  return {.argument = "N",
          .default_text = std::to_string(target),
          .implicit = "",
          .words = {},
          .assign = [&target, range](std::string_view text) {
            const int64_t value = parse_integer(text);
            check_range(text, static_cast<double>(value), range);
            target = value;
          }};
}

OptionValue seed_value(uint64_t& target) {
  return {.argument = "N",
          .default_text = std::to_string(target),
          .implicit = "",
          .words = {},
          .assign = [&target](std::string_view text) { target = parse_seed(text); }};
}

OptionValue seed_value(std::optional<uint64_t>& target) {
  return {.argument = "N",
          .default_text = "",
          .implicit = "",
          .words = {},
          .assign = [&target](std::string_view text) { target = parse_seed(text); }};
}

OptionValue size_value(std::optional<uint64_t>& target, std::string unset) {
  return {.argument = "SIZE",
          .default_text = target ? size_text(*target) : std::move(unset),
          .implicit = "",
          .words = {},
          .assign = [&target](std::string_view text) { target = parse_size(text); }};
}

OptionValue size_value(uint64_t& target, std::string default_text) {
  return {.argument = "SIZE",
          .default_text = std::move(default_text),
          .implicit = "",
          .words = {},
          .assign = [&target](std::string_view text) { target = parse_size(text); }};
}

OptionValue text_value(std::string& target, std::string argument) {
  return {.argument = std::move(argument),
          .default_text = target,
          .implicit = "",
          .words = {},
          .assign = [&target](std::string_view text) {
            if (text.empty()) fail("'' is empty: it needs a name.");
            target = std::string(text);
          }};
}

OptionValue list_value(std::vector<std::string>& target, std::string argument) {
  return {.argument = std::move(argument),
          .default_text = "",
          .implicit = "",
          .words = {},
          .assign = [&target](std::string_view text) { target.emplace_back(text); }};
}

OptionValue flag_value(bool& target) {
  return {.argument = "",
          .default_text = "",
          .implicit = "true",
          .words = {"true", "false", "yes", "no", "on", "off", "1", "0"},
          .assign = [&target](std::string_view text) { target = parse_boolean(text); }};
}

void throw_no_such_word(std::string_view text, const std::vector<std::string>& words) {
  std::string message = quoted(text) + " is none of";
  for (size_t i = 0; i < words.size(); ++i) message += (i == 0 ? " " : ", ") + words[i];
  const std::optional<std::string> nearest = nearest_word(text, words);
  fail(message + (nearest ? ". Did you mean " + *nearest + "?" : "."));
}

std::optional<std::string> nearest_word(std::string_view text, const std::vector<std::string>& words) {
  std::optional<std::string> nearest;
  size_t least = std::max<size_t>(2, text.size() / 3) + 1;  // a third of the letters wrong is another word
  for (const std::string& word : words) {
    const size_t distance = edit_distance(text, word);
    if (distance < least && distance < word.size()) {
      least = distance;
      nearest = word;
    }
  }
  return nearest;
}

}  // namespace sluice
