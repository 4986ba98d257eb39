#include "apps/common/option_table.h"

#include <algorithm>
#include <memory>

// cxxopts can do without std::regex, of which GCC 12 warns under a sanitizer (gcc.gnu.org/PR105562).
#define CXXOPTS_NO_REGEX
#include <cxxopts.hpp>

#include "engine/base/error.h"

namespace sluice {
namespace {

bool is_flag_syntax(std::string_view argument) {
  return argument.size() > 1 && argument[0] == '-';
}

std::string with_underscores(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

// "--max-steps=5" -> "max_steps"; "max_steps=5" -> "max_steps".
std::string key_of(std::string_view argument) {
  const size_t start = std::min(argument.find_first_not_of('-'), argument.size());
  return with_underscores(
      argument.substr(start, std::min(argument.find('=', start), argument.size()) - start));
}

bool has_value(std::string_view argument) {
  return argument.find('=') != std::string_view::npos;
}

std::string value_of(std::string_view argument) {
  return std::string(argument.substr(argument.find('=') + 1));
}

bool is_help(std::string_view argument) {
  return argument == "-h" || argument == "--help";
}

}  // namespace

OptionTable::OptionTable(std::string command, std::string usage, std::string summary)
    : command_(std::move(command)), usage_(std::move(usage)), summary_(std::move(summary)) {}

void OptionTable::add(const std::string& group, OptionRow row) {
  SLUICE_CHECK(find(row.name) == nullptr, row.name);
  for (const std::string& alias : row.aliases) SLUICE_CHECK(find(alias) == nullptr, alias);
  rows_.push_back({group, std::move(row)});
}

const OptionRow* OptionTable::find(std::string_view spelling) const {
  for (const GroupedRow& grouped : rows_) {
    const OptionRow& row = grouped.row;
    if (row.name == spelling) return &row;
    if (std::find(row.aliases.begin(), row.aliases.end(), spelling) != row.aliases.end()) return &row;
  }
  return nullptr;
}

OptionTable::Outcome OptionTable::parse(std::span<const std::string> arguments) const {
  const auto given = normalise(arguments);
  // Every name and value is now an argument of its own: cxxopts' pattern for --key=value stops at a line
  // break.
  std::vector<std::string> words = {command_};
  for (const auto& [row, text] : given) {
    if (row == nullptr) return Outcome::help_wanted;
    words.push_back("--" + row->name);
    words.push_back(text);
  }
  std::vector<const char*> pointers;
  pointers.reserve(words.size());
  for (const std::string& word : words) pointers.push_back(word.c_str());

  cxxopts::Options options(words[0]);
  for (const GroupedRow& grouped : rows_) {
    options.add_options(grouped.group)(grouped.row.name, grouped.row.help, cxxopts::value<std::string>());
  }
  const cxxopts::ParseResult result = options.parse(static_cast<int>(pointers.size()), pointers.data());
  for (const cxxopts::KeyValue& argument : result.arguments())
    assign(*find(argument.key()), argument.value());
  for (const GroupedRow& grouped : rows_) {
    const OptionRow& row = grouped.row;
    if (row.presence == Presence::required && result.count(row.name) == 0) {
      throw Error(ErrorKind::usage, command_ + " needs --" + row.name + " " + row.value.argument + " (" +
                                        row.help + "). Usage: " + usage_);
    }
  }
  return Outcome::parsed;
}

std::vector<std::pair<const OptionRow*, std::string>> OptionTable::normalise(
    std::span<const std::string> arguments) const {
  std::vector<std::pair<const OptionRow*, std::string>> given;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (is_help(argument)) {
      given.emplace_back(nullptr, "");
      continue;
    }
    const bool dashed = argument.starts_with("--");
    const OptionRow* row = dashed || has_value(argument) ? find(key_of(argument)) : nullptr;
    if (is_flag_syntax(argument) && !dashed) row = nullptr;
    if (row != nullptr && has_value(argument)) {
      given.emplace_back(row, value_of(argument));
    } else if (row != nullptr) {
      given.emplace_back(row, take_value(*row, arguments.subspan(i + 1), i));
    } else if (!positional_.empty() && !is_flag_syntax(argument)) {
      given.emplace_back(find(positional_), argument);
    } else {
      fail_unknown(argument);
    }
  }
  return given;
}

// The value in the arguments behind an option, `used` moved on if one was taken.
std::string OptionTable::take_value(const OptionRow& row, std::span<const std::string> rest,
                                    size_t& used) const {
  const OptionValue& value = row.value;
  if (!value.implicit.empty()) {
    if (rest.empty() || std::find(value.words.begin(), value.words.end(), rest[0]) == value.words.end()) {
      return value.implicit;
    }
  } else if (rest.empty() || is_help(rest[0]) ||
             (rest[0].starts_with("--") && find(key_of(rest[0])) != nullptr)) {
    throw Error(ErrorKind::usage, "--" + row.name + " needs a value: --" + row.name + " " + value.argument +
                                      " (" + row.help + ").");
  }
  ++used;
  return rest[0];
}

void OptionTable::assign(const OptionRow& row, const std::string& text) const {
  try {
    row.value.assign(text);
  } catch (const Error& error) {
    throw Error(error.kind(), "--" + row.name + ": " + error.what());
  }
}

void OptionTable::fail_unknown(const std::string& argument) const {
  std::vector<std::string> names;
  for (const GroupedRow& grouped : rows_) {
    if (grouped.row.presence == Presence::hidden) continue;
    names.push_back(grouped.row.name);
    names.insert(names.end(), grouped.row.aliases.begin(), grouped.row.aliases.end());
  }
  const bool is_option = is_flag_syntax(argument) || has_value(argument);
  const std::string key = key_of(argument);
  std::string message = is_option ? "unknown option --" + key + " of " + command_
                                  : command_ + " does not know what to do with '" + argument + "'";
  // An alias that is near stands for its canonical name.
  if (const std::optional<std::string> nearest = nearest_word(key, names)) {
    message += ". Did you mean --" + find(*nearest)->name + "?";
  } else {
    message += ".";
  }
  throw Error(ErrorKind::usage, message + " All options: " + command_ + " --help");
}

std::string OptionTable::help() const {
  cxxopts::Options options(command_);
  options.set_width(110);
  std::vector<std::string> groups;
  for (const auto& [group, row] : rows_) {
    if (row.presence == Presence::hidden) continue;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    std::shared_ptr<cxxopts::Value> value = cxxopts::value<std::string>();
    if (row.value.argument.empty()) value = cxxopts::value<bool>();
    if (!row.value.default_text.empty()) value->default_value(row.value.default_text);
    const std::string note = row.presence == Presence::required ? " (required)" : "";
    options.add_options(group)(row.name, row.help + note, value, row.value.argument);
  }
  // cxxopts opens with a line of the program's name: what stands before the first group is ours.
  const std::string listing = options.help(groups);
  return "Usage: " + usage_ + "\n\n" + summary_ + "\n\n" + listing.substr(listing.find(" " + groups[0])) +
         "\nNames take - or _ alike, as --key value, --key=value or key=value.\n";
}

}  // namespace sluice
