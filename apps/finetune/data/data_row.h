#pragma once

#include <string>
#include <string_view>
#include <variant>

namespace sluice {

// What the rows of a data file look like. The first row that can be told decides for the file.
enum class DataFormat { unknown, text, prompt_completion, plain };

std::string_view name(DataFormat format);

// A sound row. `text` rows have no prompt.
struct DataRow {
  std::string prompt;
  std::string completion;  // or the text
  std::string warning;     // such as a key that stands there twice; empty if there is none
};

// Why a row cannot be used. `label` is a word for tests and counts (utf8, json, missing_key, wrong_type,
// null_content, empty, empty_answer, lone_surrogate, chat), `message` a sentence for people, without file and
// line.
struct RowFault {
  std::string label;
  std::string message;
};

// Reads one line of JSONL, not blank. Sets `format` where it is still unknown. Throws Error(data) without
// file and line where the file as a whole is of a kind that is recognised and not supported (chat,
// instructions, preferences, an array).
std::variant<DataRow, RowFault> parse_data_row(std::string_view line, DataFormat& format);

}  // namespace sluice
