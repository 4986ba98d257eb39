#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

// Text of the command line to values. Each throws Error(usage) that quotes the text and shows how to write
// it; none knows the option's name, which OptionTable puts in front.
double parse_real(std::string_view text);      // "2e-5", "1E-4", ".5"; finite
int64_t parse_integer(std::string_view text);  // "12", "-1"; also "1e3", as it is a whole number
// Bytes: "1024", "512MiB", "1.5GB", "2 GiB". KB is 1000, KiB 1024; a bare letter (K, M, G, T) is binary, as
// in dd(1).
uint64_t parse_size(std::string_view text);
bool parse_boolean(std::string_view text);  // true/false, yes/no, on/off, 1/0

// "512 MiB", "1.5 GiB", "1023 B": three digits, for messages and help.
std::string size_text(uint64_t bytes);

// What an option does with its text. Refers to the target, which must outlive it.
struct OptionValue {
  std::string argument;            // its name in help: "N", "SIZE", "constant|linear|cosine"
  std::string default_text;        // empty: no default, or none worth showing
  std::string implicit;            // the text where none is given; empty: one must be given
  std::vector<std::string> words;  // all that it accepts, where that is a short list
  std::function<void(std::string_view)> assign;
};

// Accepted numbers, ends included unless said otherwise.
struct Range {
  enum class Ends { closed, open_above, open };
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  Ends ends = Ends::closed;
};

OptionValue real_value(double& target, Range range = {});
OptionValue integer_value(int64_t& target, Range range = {});
OptionValue seed_value(uint64_t& target);
OptionValue seed_value(std::optional<uint64_t>& target);
// `unset` says in help what happens without one.
OptionValue size_value(std::optional<uint64_t>& target, std::string unset);
OptionValue size_value(uint64_t& target, std::string default_text);
OptionValue text_value(std::string& target, std::string argument);
OptionValue list_value(std::vector<std::string>& target, std::string argument);  // each use appends
OptionValue flag_value(bool& target);

// The error of a text that is none of `words`, with the nearest of them.
[[noreturn]] void throw_no_such_word(std::string_view text, const std::vector<std::string>& words);

// The word of `words` that is fewest typing errors (insert, drop, replace, swap) away, if it is near enough
// to be meant.
std::optional<std::string> nearest_word(std::string_view text, const std::vector<std::string>& words);

// One of a few words. The first `shown` choices stand in help; the others are synonyms.
template <class T>
OptionValue choice_value(T& target, std::vector<std::pair<std::string, T>> choices, size_t shown) {
  OptionValue value;
  for (size_t i = 0; i < choices.size(); ++i) {
    value.words.push_back(choices[i].first);
    if (i < shown) value.argument += (i == 0 ? "" : "|") + choices[i].first;
    if (choices[i].second == target && value.default_text.empty()) value.default_text = choices[i].first;
  }
  value.assign = [&target, choices = std::move(choices), words = value.words](std::string_view text) {
    for (const auto& [word, choice] : choices) {
      if (word == text) {
        target = choice;
        return;
      }
    }
    throw_no_such_word(text, words);
  };
  return value;
}

}  // namespace sluice
