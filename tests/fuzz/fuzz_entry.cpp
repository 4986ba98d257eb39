// What libFuzzer calls, of the program that SLUICE_FUZZ_TARGET names.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  using namespace sluice::test;
  static const FuzzTarget& target =
      *std::ranges::find(fuzz_targets(), std::string_view(SLUICE_FUZZ_TARGET), &FuzzTarget::name);
  target.check({reinterpret_cast<const char*>(data), size_bytes});
  return 0;
}
