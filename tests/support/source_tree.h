#pragma once

#include <filesystem>

namespace sluice::test {

// The source tree that this build was made from.
std::filesystem::path source_folder();

// $SLUICE_FIXTURES, or tests/data of the source tree: our own copies; shared/fixtures holds more.
std::filesystem::path fixtures_folder();

}  // namespace sluice::test
