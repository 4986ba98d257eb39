#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "tests/faults/machine.h"

// Many short runs of what keeps a state, each on a machine of its own whose drives fail as a seed will.
namespace sluice::test {

// How the run of a seed ended. `silent`: with other bits, a lost generation, an error that does not name what
// it must, or one where all could have been healed.
enum class Ending { healed, named, silent };

struct Verdict {
  Ending ending = Ending::healed;
  bool untouched = false;  // no fault came about
  std::string reason;      // of a silent one
  std::array<int, kFaultKinds> faults{};
};

// `log`: null, or what it did. A broken SLUICE_CHECK ends the process, after the seed was printed.
Verdict run_seed(uint64_t seed, Mutant mutant, std::ostream* log);

// Sums over seeds. A value without pointers, so that processes can hand it on.
struct Tally {
  uint64_t seeds = 0, untouched = 0;
  std::array<uint64_t, 3> endings{};                        // by Ending
  std::array<uint64_t, kFaultKinds> faults{};               // that came about
  std::array<std::array<uint64_t, 3>, kFaultKinds> runs{};  // that met one of the kind, by Ending

  void add(const Verdict& verdict);
  void add(const Tally& other);
};
void print(std::ostream& out, const Tally& tally);

}  // namespace sluice::test
