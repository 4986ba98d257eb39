#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/option_values.h"

namespace sluice {

enum class Presence { optional, required, hidden };  // hidden: works, but help does not list it (tests)

// One row of a command's table of options.
struct OptionRow {
  std::string name;  // canonical, with underscores
  OptionValue value;
  std::string help;
  std::vector<std::string> aliases;  // what other trainers call it; accepted, never shown as a suggestion
  Presence presence = Presence::optional;
};

// The options of one command. Names are read with `-` and `_` alike, as `--key value`, `--key=value` or
// `key=value`; given twice, the last one counts. Spelling is settled here, cxxopts parses what is left and
// prints the help.
class OptionTable {
 public:
  enum class Outcome { parsed, help_wanted };

  // `command` is what the user types: "finetune train"; `usage` the whole line: "finetune train --model DIR
  // ...". Both begin with the name of the program.
  OptionTable(std::string command, std::string usage, std::string summary);

  void add(const std::string& group, OptionRow row);
  // Bare words go to this option, in order: the FILE of `finetune import FILE`.
  void set_positional(const std::string& name) { positional_ = name; }

  // Assigns every value. Throws Error(usage) that names the option, and for an unknown one the nearest.
  [[nodiscard]] Outcome parse(std::span<const std::string> arguments) const;
  std::string help() const;

 private:
  struct GroupedRow {
    std::string group;
    OptionRow row;
  };

  const OptionRow* find(std::string_view spelling) const;
  // Arguments as (row, text of the value), in the order given; a null row is a wish for help.
  std::vector<std::pair<const OptionRow*, std::string>> normalise(
      std::span<const std::string> arguments) const;
  std::string take_value(const OptionRow& row, std::span<const std::string> rest, size_t& used) const;
  void assign(const OptionRow& row, const std::string& text) const;
  [[noreturn]] void fail_unknown(const std::string& argument) const;

  std::string command_;
  std::string usage_;
  std::string summary_;
  std::string positional_;
  std::vector<GroupedRow> rows_;
};

}  // namespace sluice
