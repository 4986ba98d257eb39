#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/source_tree.h"

namespace sluice::test {

// Tokenizers of other projects, which are not in the repository.
inline std::filesystem::path real_tokenizer(const std::string& name) {
  return fixtures_folder() / ".." / "tokenizers" / name / "tokenizer.json.xz";
}

// Names of the folders in `folder` that hold `file`, sorted.
inline std::vector<std::string> folders_with(const std::filesystem::path& folder, const std::string& file) {
  std::vector<std::string> names;
  if (!std::filesystem::is_directory(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / file)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sluice::test
