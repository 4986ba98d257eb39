#include "tests/support/source_tree.h"

#include <cstdlib>

namespace sluice::test {

std::filesystem::path source_folder() {
  return SLUICE_SOURCE_DIR;
}

std::filesystem::path fixtures_folder() {
  const char* const folder = std::getenv("SLUICE_FIXTURES");
  return folder != nullptr && *folder != 0 ? std::filesystem::path(folder) : source_folder() / "tests/data";
}

}  // namespace sluice::test
