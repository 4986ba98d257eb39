#pragma once

#include <string>

namespace sluice::test {

// The contents of an .xz file. Throws std::runtime_error naming the path.
std::string read_xz(const std::string& path);

}  // namespace sluice::test
