#pragma once

#include <unordered_map>

#include "io/gguf.h"

namespace sluice {

// The parsed beginning of a GGUF file; private to GgufFile.
struct GgufHeader {
  std::vector<GgufTensor> tensors;
  std::unordered_map<std::string, GgufValue> metadata;
};

GgufHeader read_gguf_header(const File& file);

}  // namespace sluice
