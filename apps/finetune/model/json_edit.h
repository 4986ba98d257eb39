#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

// `text`, a JSON object that has been parsed before, with another value (as JSON: `"bfloat16"`, `12`) at a
// key, or at a key of an object in it ({"metadata", "total_size"}); every other byte stays. Unchanged where
// there is no such key.
std::string with_json_value(std::string text, std::span<const std::string_view> path, std::string_view value);

}  // namespace sluice
