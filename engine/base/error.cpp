#include "engine/base/error.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace sluice {

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number) + " (" + std::to_string(error_number) + ")";
}

void check_failed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: bug: %s does not hold%s%.*s\n", file, line, condition,
               message.empty() ? "" : ": ", static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace sluice
