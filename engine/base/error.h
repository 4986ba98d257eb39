#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice {

// What a fault means for whoever started the program; main turns it into the exit code (docs/exit-codes.md).
enum class ErrorKind {
  runtime,   // 1: anything else that went wrong in the world
  usage,     // 2: options
  data,      // 3: model or data files
  resource,  // 4: not enough memory or disk, before or during the run
  diverged,  // 5: NaN loss, or nothing to learn from
};

// A fault of the world. The message says what happened, why it matters and what to try, with path, offset,
// tensor.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

inline int exit_code(ErrorKind kind) {
  return 1 + static_cast<int>(kind);
}

// errno as words: "No space left on device (28)".
std::string errno_text(int error_number);

// Prints file, line and the broken condition, then aborts. For bugs in the program, never for bad input.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, std::string_view message);

}  // namespace sluice

// A condition that only a bug in the program can break. The optional second argument is a std::string_view.
#define SLUICE_CHECK(condition, ...)                                                           \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::sluice::check_failed(__FILE__, __LINE__, #condition, ::std::string_view{__VA_ARGS__}); \
  } while (false)
