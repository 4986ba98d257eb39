#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"

namespace sluice {

// Typed reading of a GGUF file's metadata; a value of another type, or a missing one that is required, is an
// Error of kind `data` that names file and key. A view: the file must outlive it.
class GgufMetadata {
 public:
  explicit GgufMetadata(const GgufFile& file) : file_(file) {}

  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(
      std::string_view key) const;  // fp32 as its shortest decimal: 1e-05, not 9.99...e-06
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  const std::vector<std::string>* texts(std::string_view key) const;  // null where absent
  std::vector<int64_t> integers(std::string_view key) const;          // empty where absent

  int64_t required_integer(std::string_view key) const;
  std::string required_text(std::string_view key) const;
  const std::vector<std::string>& required_texts(std::string_view key) const;

  [[noreturn]] void refuse(std::string_view key, const std::string& problem) const;  // "FILE: KEY PROBLEM."

 private:
  const GgufFile& file_;
};

}  // namespace sluice
