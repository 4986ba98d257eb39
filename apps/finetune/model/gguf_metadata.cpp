#include "apps/finetune/model/gguf_metadata.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/base/error.h"

namespace sluice {
namespace {

std::optional<int64_t> as_integer(const GgufValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  const auto* number = std::get_if<uint64_t>(&value);
  if (number == nullptr || *number > std::numeric_limits<int64_t>::max()) return std::nullopt;
  return static_cast<int64_t>(*number);
}

double shortest(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double number = 0;
  std::from_chars(text.data(), end, number);
  return number;
}

}  // namespace

void GgufMetadata::refuse(std::string_view key, const std::string& problem) const {
  throw Error(ErrorKind::data, file_.path().string() + ": " + std::string(key) + " " + problem + ".");
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = file_.metadata(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = as_integer(*value);
  if (!number) refuse(key, "is no integer of 64 bits");
  return number;
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = file_.metadata(key);
  if (value == nullptr) return std::nullopt;
  std::optional<double> number;
  if (const auto* single = std::get_if<float>(value)) {
    number = shortest(*single);
  } else if (const auto* full = std::get_if<double>(value)) {
    number = *full;
  } else if (const auto integer = as_integer(*value)) {
    number = static_cast<double>(*integer);
  }
  // JSON has neither NaN nor infinity: they would become null there, which means absent.
  if (!number || !std::isfinite(*number)) refuse(key, "is no finite number");
  return number;
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = file_.metadata(key);
  if (value == nullptr) return std::nullopt;
  const auto* flag = std::get_if<bool>(value);
  if (flag == nullptr) refuse(key, "is neither true nor false");
  return *flag;
}

std::optional<std::string> GgufMetadata::text(std::string_view key) const {
  const GgufValue* value = file_.metadata(key);
  if (value == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string>(value);
  if (text == nullptr) refuse(key, "is no text");
  return *text;
}

const std::vector<std::string>* GgufMetadata::texts(std::string_view key) const {
  const GgufValue* value = file_.metadata(key);
  if (value == nullptr) return nullptr;
  const auto* list = std::get_if<std::vector<std::string>>(value);
  if (list == nullptr) refuse(key, "is no list of texts");
  return list;
}

std::vector<int64_t> GgufMetadata::integers(std::string_view key) const {
  const GgufValue* value = file_.metadata(key);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<int64_t>>(value)) return *list;
  const auto* list = std::get_if<std::vector<uint64_t>>(value);
  if (list == nullptr) refuse(key, "is no list of integers");
  return {list->begin(), list->end()};
}

int64_t GgufMetadata::required_integer(std::string_view key) const {
  const std::optional<int64_t> value = integer(key);
  if (!value) refuse(key, "is missing");
  return *value;
}

std::string GgufMetadata::required_text(std::string_view key) const {
  std::optional<std::string> value = text(key);
  if (!value) refuse(key, "is missing");
  return std::move(*value);
}

const std::vector<std::string>& GgufMetadata::required_texts(std::string_view key) const {
  const std::vector<std::string>* value = texts(key);
  if (value == nullptr) refuse(key, "is missing");
  return *value;
}

}  // namespace sluice
