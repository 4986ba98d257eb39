#include "apps/finetune/data/data_row.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/finetune/data/unicode_classes.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

using nlohmann::json;

// Kinds of files that people have and that are read elsewhere or not at all.
struct OtherKind {
  const char* key;
  const char* message;
};
constexpr OtherKind kOtherKinds[] = {
    {"messages",
     "chat data (\"messages\") comes later; render it to {\"prompt\", \"completion\"} rows with the model's "
     "chat template"},
    {"conversations",
     "chat data (\"conversations\") comes later; render it to {\"prompt\", \"completion\"} rows with the "
     "model's chat template"},
    {"chosen",
     "preference data (\"chosen\", \"rejected\") needs DPO-like training, which this command does not do"},
    {"instruction",
     "instruction data (\"instruction\", \"output\") comes later; render it to {\"prompt\", "
     "\"completion\"} rows"},
};

const OtherKind* other_kind(const json& row) {
  for (const OtherKind& kind : kOtherKinds) {
    if (row.contains(kind.key)) return &kind;
  }
  return nullptr;
}

bool is_blank(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (!is_white_space(utf8::next(text, at))) return false;
  }
  return true;
}

std::string quoted_keys(const json& row) {
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "\"" : ", \"") + key + "\"";
  return keys.empty() ? "no keys" : "only " + keys;
}

// The last of several equal keys counts, as everywhere in JSON; `twice` names one that was.
std::variant<json, RowFault> parse_json(std::string_view line, std::string& twice) {
  if (const size_t bad = utf8::first_invalid(line); bad != utf8::kValid)
    return RowFault{"utf8", "not UTF-8 at byte " + std::to_string(bad) + " of the line"};
  std::vector<std::string> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (event != json::parse_event_t::key || depth != 1) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) twice = key;
    keys.push_back(key);
    return true;
  };
  try {
    return json::parse(line, watch);
  } catch (const json::parse_error& error) {
    const std::string what = error.what();
    const bool surrogate = what.find("surrogate") != std::string::npos;
    return RowFault{surrogate ? "lone_surrogate" : "json",
                    (surrogate ? "half of a surrogate pair at byte " : "not JSON at byte ") +
                        std::to_string(error.byte) + " of the line: " + what};
  } catch (const json::exception& error) {  // a number that no double can hold
    return RowFault{"json", std::string("not JSON: ") + error.what()};
  }
}

// The string at `key`, or why there is none.
std::variant<std::string, RowFault> text_of(const json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end()) {
    const OtherKind* const other = other_kind(row);
    return RowFault{"missing_key",
                    std::string("\"") + key + "\" is missing, there are " + quoted_keys(row) +
                        (other != nullptr ? ". It looks like " + std::string(other->key) : "")};
  }
  if (found->is_null()) return RowFault{"null_content", std::string("\"") + key + "\" is null"};
  if (found->is_array())
    return RowFault{
        "chat",
        std::string("\"") + key +
            "\" is a list of messages; chat data comes later. Render it to text with the model's chat "
            "template"};
  if (!found->is_string())
    return RowFault{"wrong_type",
                    std::string("\"") + key + "\" is a " + found->type_name() + ", not a string"};
  return found->get<std::string>();
}

void decide(const json& row, DataFormat& format) {
  if (format != DataFormat::unknown) return;
  if (row.contains("text")) {
    format = DataFormat::text;
  } else if (const OtherKind* other = other_kind(row)) {
    throw Error(ErrorKind::data, other->message);
  } else if (row.contains("prompt") || row.contains("completion")) {
    format = DataFormat::prompt_completion;
  }
}

std::variant<DataRow, RowFault> text_row(const json& row) {
  auto text = text_of(row, "text");
  if (auto* fault = std::get_if<RowFault>(&text)) return std::move(*fault);
  auto& value = std::get<std::string>(text);
  if (value.empty()) return RowFault{"empty", "\"text\" is empty"};
  return DataRow{"", std::move(value), ""};
}

std::variant<DataRow, RowFault> prompt_completion_row(const json& row) {
  auto prompt = text_of(row, "prompt");
  if (auto* fault = std::get_if<RowFault>(&prompt)) return std::move(*fault);
  auto completion = text_of(row, "completion");
  if (auto* fault = std::get_if<RowFault>(&completion)) return std::move(*fault);
  auto& answer = std::get<std::string>(completion);
  if (is_blank(answer))
    return RowFault{"empty_answer", "\"completion\" is empty, so there is nothing to learn from the row"};
  return DataRow{std::move(std::get<std::string>(prompt)), std::move(answer), ""};
}

}  // namespace

std::string_view name(DataFormat format) {
  switch (format) {
    case DataFormat::unknown:
      return "unknown";
    case DataFormat::text:
      return "text";
    case DataFormat::prompt_completion:
      return "prompt_completion";
    case DataFormat::plain:
      return "plain";
  }
  return "?";
}

std::variant<DataRow, RowFault> parse_data_row(std::string_view line, DataFormat& format) {
  const size_t first = line.find_first_not_of(" \t");
  if (format == DataFormat::unknown && first != std::string_view::npos && line[first] == '[' &&
      !json::accept(line))
    throw Error(ErrorKind::data, "the file is one JSON array; write one object a line (JSONL) instead");
  std::string twice;
  auto parsed = parse_json(line, twice);
  if (auto* fault = std::get_if<RowFault>(&parsed)) return std::move(*fault);
  const json& row = std::get<json>(parsed);
  if (!row.is_object())
    return RowFault{"wrong_type", std::string("the line is a ") + row.type_name() + ", not an object in {}"};
  decide(row, format);
  if (format == DataFormat::unknown)
    return RowFault{"missing_key",
                    "neither \"text\" nor \"prompt\" and \"completion\" are there, but " + quoted_keys(row)};
  auto result = format == DataFormat::text ? text_row(row) : prompt_completion_row(row);
  if (auto* sound = std::get_if<DataRow>(&result); sound != nullptr && !twice.empty())
    sound->warning = "the key \"" + twice + "\" stands there twice; the last one counts";
  return result;
}

}  // namespace sluice
