#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

// Fields of the small parts of a tokenizer.json, checked. `where` names the part in the message. All throw
// Error(data).
namespace sluice {

const nlohmann::json& field(const nlohmann::json& object, const char* key, std::string_view where);
std::string string_field(const nlohmann::json& object, const char* key, std::string_view where);
const nlohmann::json& array_field(const nlohmann::json& object, const char* key, std::string_view where);
// `otherwise` where the key is missing or null.
bool bool_field(const nlohmann::json& object, const char* key, std::string_view where, bool otherwise);

}  // namespace sluice
