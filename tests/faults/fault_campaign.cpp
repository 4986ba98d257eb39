// fault_campaign --seeds 0:2000 [--jobs 2] | --seed N [--verbose] [--mutant NAME]: the fault campaign by
// hand.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "tests/faults/campaign.h"

namespace sluice::test {
namespace {

struct Options {
  uint64_t begin = 0, end = 2000;
  unsigned jobs = 1;
  Mutant mutant = Mutant::none;
  bool verbose = false;
};

bool number(std::string_view text, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<Options> parsed(int count, char** values) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view option = values[i];
    if (option == "--verbose") {
      options.verbose = true;
      continue;
    }
    if (++i == count) return std::nullopt;
    const std::string_view value = values[i];
    uint64_t parsed_number = 0;
    if (option == "--seed" && number(value, options.begin)) {
      options.end = options.begin + 1;
    } else if (const size_t colon = value.find(':'); option == "--seeds" && colon != std::string_view::npos &&
                                                     number(value.substr(0, colon), options.begin) &&
                                                     number(value.substr(colon + 1), options.end)) {
      continue;
    } else if (option == "--jobs" && number(value, parsed_number) && 0 < parsed_number &&
               parsed_number <= 256) {
      options.jobs = static_cast<unsigned>(parsed_number);
    } else if (option == "--mutant") {
      options.mutant = Mutant::none;
      for (size_t mutant = 1; mutant < kMutants; ++mutant)
        if (name(static_cast<Mutant>(mutant)) == value) options.mutant = static_cast<Mutant>(mutant);
      if (options.mutant == Mutant::none) return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

// Every `jobs`-th seed from the `job`-th on.
Tally run_share(const Options& options, unsigned job) {
  Tally tally;
  for (uint64_t seed = options.begin + job; seed < options.end; seed += options.jobs) {
    const Verdict verdict = run_seed(seed, options.mutant, options.verbose ? &std::cout : nullptr);
    tally.add(verdict);
    if (verdict.ending != Ending::silent) continue;
    std::string line = "silent: " + verdict.reason + "\nto see it again: fault_campaign --seed " +
                       std::to_string(seed) + " --verbose";
    if (options.mutant != Mutant::none) line += " --mutant " + std::string(name(options.mutant));
    std::cout << line + "\n" << std::flush;
  }
  return tally;
}

// A process each, since system calls go to one machine at a time. False where one died.
bool run_shares(const Options& options, Tally& tally) {
  std::vector<std::pair<pid_t, int>> children;
  for (unsigned job = 0; job < options.jobs; ++job) {
    int ends[2];
    if (::pipe(ends) != 0) return false;
    const pid_t pid = ::fork();
    if (pid < 0) return false;
    if (pid == 0) {
      const Tally share = run_share(options, job);
      const bool told = ::write(ends[1], &share, sizeof(share)) == static_cast<ssize_t>(sizeof(share));
      ::_exit(told ? 0 : 1);
    }
    ::close(ends[1]);
    children.emplace_back(pid, ends[0]);
  }
  bool all = true;
  for (const auto& [pid, end] : children) {
    Tally share;
    int status = 0;
    const bool told = ::read(end, &share, sizeof(share)) == static_cast<ssize_t>(sizeof(share));
    ::close(end);
    all = ::waitpid(pid, &status, 0) == pid && status == 0 && told && all;
    if (told) tally.add(share);
  }
  return all;
}

int run(int count, char** values) {
  const std::optional<Options> options = parsed(count, values);
  if (!options) {
    std::cerr
        << "usage: fault_campaign [--seeds BEGIN:END | --seed N] [--jobs N] [--verbose] [--mutant NAME]\n";
    return 2;
  }
  if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);  // nothing real on a disk
  Tally tally;
  bool all = true;
  if (options->jobs == 1) {
    tally = run_share(*options, 0);
  } else {
    all = run_shares(*options, tally);
  }
  print(std::cout, tally);
  if (!all) std::cout << "a process died: its seeds are not counted\n";
  return all && tally.endings[static_cast<size_t>(Ending::silent)] == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice::test

int main(int count, char** values) {
  return sluice::test::run(count, values);
}
