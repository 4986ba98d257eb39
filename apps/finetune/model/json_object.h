#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Typed reading of a JSON object from a file. A key that is null counts as absent. Every complaint is an
// Error of kind `data` that names the file and the key.
class JsonObject {
 public:
  // `file` is for messages. Throws where the text is no JSON object.
  static JsonObject parse(std::string_view text, const std::filesystem::path& file);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;   // one number or a list; empty where absent
  std::vector<std::string> texts(std::string_view key) const;  // a list; empty where absent
  std::optional<JsonObject> object(std::string_view key) const;
  std::vector<std::string> keys() const;

  int64_t required_integer(std::string_view key) const;

  // "FILE: KEY PROBLEM"
  [[noreturn]] void refuse(std::string_view key, const std::string& problem) const;

 private:
  JsonObject(nlohmann::json object, std::filesystem::path file, std::string prefix)
      : object_(std::move(object)), file_(std::move(file)), prefix_(std::move(prefix)) {}
  const nlohmann::json* find(std::string_view key) const;

  nlohmann::json object_;
  std::filesystem::path file_;
  std::string prefix_;  // "rope_parameters." inside of that object
};

}  // namespace sluice
