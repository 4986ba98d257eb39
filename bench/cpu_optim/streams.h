#pragma once

#include <cstdint>

namespace sluice::cpu_optim {

// The streams of an optimizer as 32-bit words, aligned to a cache line: one element of fp32, two of 16 bits.
struct Streams {
  const uint32_t* gradient = nullptr;  // read
  uint32_t* floats[3] = {};            // fp32, read and written
  uint32_t* words[4] = {};             // 16 bits, read and written
  uint32_t* streamed = nullptr;        // 16 bits, written past the cache
  uint32_t* records[2] = {};           // of int8, read and written
  uint32_t mask = 0;  // what is added to them, of the gradient: nothing, which no compiler knows
};

}  // namespace sluice::cpu_optim
