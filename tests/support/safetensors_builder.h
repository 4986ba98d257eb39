#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/safetensors_writer.h"

namespace sluice::test {

struct StoredTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline void write_safetensors(const std::filesystem::path& path, const std::vector<StoredTensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const StoredTensor& tensor : tensors) entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, entries);
  for (const StoredTensor& tensor : tensors)
    writer.write(tensor.name, tensor.bytes.data(), tensor.bytes.size());
  writer.finish();
}

}  // namespace sluice::test
