#include "bench/support/program.h"

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace sluice::bench {

Program::Program(const std::string& name, std::string summary)
    : name_(name), table_(name, name + " [options]", std::move(summary)) {
  add({.name = "full", .value = flag_value(full_), .help = "more, longer runs"});
}

int Program::main(int count, char** values, const std::function<int()>& run) {
  try {
    const std::vector<std::string> arguments(values + 1, values + count);
    if (table_.parse(arguments) == OptionTable::Outcome::help_wanted) {
      std::printf("%s", table_.help().c_str());
      return 0;
    }
    return run();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", name_.c_str(), error.what());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name_.c_str(), error.what());
    return 1;
  }
}

}  // namespace sluice::bench
