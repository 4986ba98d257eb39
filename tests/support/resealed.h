#pragma once

#include <cstring>
#include <string>
#include <xxhash.h>

namespace sluice::test {

// Makes the manifest's own checksum right again, so that what is behind that check is reached.
inline std::string resealed(std::string bytes) {
  if (bytes.size() < 8) return bytes;
  const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size() - 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, 8);
  return bytes;
}

}  // namespace sluice::test
