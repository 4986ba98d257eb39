#include "apps/finetune/data/json_fields.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace sluice {
namespace {

[[noreturn]] void wrong(std::string_view where, const char* key, std::string_view wanted) {
  throw Error(ErrorKind::data, std::string(where) + ": \"" + key + "\" is not " + std::string(wanted));
}

}  // namespace

const nlohmann::json& field(const nlohmann::json& object, const char* key, std::string_view where) {
  if (!object.is_object()) throw Error(ErrorKind::data, std::string(where) + " is not an object");
  const auto found = object.find(key);
  if (found == object.end())
    throw Error(ErrorKind::data, std::string(where) + ": \"" + key + "\" is missing");
  return *found;
}

std::string string_field(const nlohmann::json& object, const char* key, std::string_view where) {
  const nlohmann::json& value = field(object, key, where);
  if (!value.is_string()) wrong(where, key, "a string");
  return value.get<std::string>();
}

const nlohmann::json& array_field(const nlohmann::json& object, const char* key, std::string_view where) {
  const nlohmann::json& value = field(object, key, where);
  if (!value.is_array()) wrong(where, key, "an array");
  return value;
}

bool bool_field(const nlohmann::json& object, const char* key, std::string_view where, bool otherwise) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  if (!found->is_boolean()) wrong(where, key, "true or false");
  return found->get<bool>();
}

}  // namespace sluice
