#include "apps/finetune/model/json_object.h"

#include <cmath>
#include <limits>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr int kDeepest = 64;  // real files: 4

// Python writes 8.0 where 8 is meant often enough; a whole number is an integer however it is spelled.
std::optional<int64_t> as_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > std::numeric_limits<int64_t>::max()) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (std::floor(number) != number || std::abs(number) > 9007199254740992.0) return std::nullopt;  // 2^53
  return static_cast<int64_t>(number);
}

}  // namespace

JsonObject JsonObject::parse(std::string_view text, const std::filesystem::path& file) {
  nlohmann::json json;
  try {
    // Trees are copied and printed recursively: a deep one would overflow the stack later.
    json = nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      if (depth > kDeepest) throw Error(ErrorKind::data, file.string() + " is nested too deep.");
      return true;
    });
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ErrorKind::data, file.string() + " is no valid JSON at byte " + std::to_string(error.byte) +
                                     ". Was it downloaded completely?");
  } catch (const nlohmann::json::exception& error) {  // a number that no double can hold
    throw Error(ErrorKind::data, file.string() + " is no valid JSON: " + error.what() + ".");
  }
  if (!json.is_object()) throw Error(ErrorKind::data, file.string() + " holds no JSON object.");
  return JsonObject(std::move(json), file, "");
}

void JsonObject::refuse(std::string_view key, const std::string& problem) const {
  throw Error(ErrorKind::data, file_.string() + ": " + prefix_ + std::string(key) + " " + problem + ".");
}

const nlohmann::json* JsonObject::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> JsonObject::integer(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = as_integer(*value);
  if (!number) refuse(key, "is " + value->dump() + " and not an integer of 64 bits");
  return number;
}

int64_t JsonObject::required_integer(std::string_view key) const {
  const std::optional<int64_t> value = integer(key);
  if (!value) refuse(key, "is missing");
  return *value;
}

std::optional<double> JsonObject::number(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(key, "is " + value->dump() + " and not a number");
  return value->get<double>();
}

std::optional<bool> JsonObject::boolean(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, "is " + value->dump() + " and neither true nor false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::text(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, "is " + value->dump() + " and not a text");
  return value->get<std::string>();
}

std::vector<int64_t> JsonObject::integers(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {*integer(key)};
  std::vector<int64_t> numbers;
  for (const nlohmann::json& element : *value) {
    const std::optional<int64_t> number = as_integer(element);
    if (!number) refuse(key, "holds " + element.dump() + ", which is not an integer of 64 bits");
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) refuse(key, "is " + value->dump() + " and not a list");
  std::vector<std::string> result;
  for (const nlohmann::json& element : *value) {
    if (!element.is_string()) refuse(key, "holds " + element.dump() + ", which is not a text");
    result.push_back(element.get<std::string>());
  }
  return result;
}

std::optional<JsonObject> JsonObject::object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, "is " + value->dump() + " and not an object");
  return JsonObject(*value, file_, prefix_ + std::string(key) + ".");
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_.items()) names.push_back(key);
  return names;
}

}  // namespace sluice
