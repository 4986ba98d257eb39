#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "apps/finetune/commands.h"
#include "engine/base/error.h"

namespace {

using sluice::Error;
using sluice::ErrorKind;

int run(std::span<const std::string> arguments) {
  const int code = std::visit([](const auto& options) { return sluice::finetune::run_command(options); },
                              sluice::finetune::parse_command_line(arguments));
  std::cout.flush();
  if (!std::cout) throw Error(ErrorKind::runtime, "cannot write to standard output. Is its disk full?");
  return code;
}

int fail(ErrorKind kind, const std::string& message) {
  std::cout.flush();
  std::cerr << "finetune: " << message << "\n";
  return sluice::exit_code(kind);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file over `ulimit -f` is then an Error like a full disk
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const Error& error) {
    return fail(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::resource,
                "out of memory. Look at what the run needs with `finetune plan`; try a smaller "
                "--device_memory, or fewer "
                "or shorter rows.");
  } catch (const std::exception& error) {
    return fail(ErrorKind::runtime, error.what());
  }
}
