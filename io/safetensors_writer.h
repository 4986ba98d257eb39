#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/safetensors.h"

namespace sluice {

// A tensor that is to be written.
struct SafetensorsEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// Writes a safetensors file front to back, in pieces of any size, holding no data. The file appears under its
// name at finish(); a writer destroyed before that leaves nothing. Single-threaded. Faults of the disk throw
// as File does.
class SafetensorsWriter {
 public:
  // Tensors are laid out in the order given; the header is padded with spaces to a multiple of 8 bytes.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& tensors,
                    const TensorMetadata& metadata = {{"format", "pt"}});
  // A file with the same tensors, dtypes, shapes and metadata as `source`: its header is taken byte for byte,
  // so that equal data gives an equal file. Only the header is read, here; `source` need not outlive the
  // call.
  SafetensorsWriter(const std::filesystem::path& path, const SafetensorsFile& source);
  // The same, but some tensors in another dtype: the one that `dtype_of` gives, if it gives one. Where that
  // changes nothing, the header is the source's byte for byte.
  using DTypeOf = std::function<std::optional<DType>(const TensorInfo&)>;
  SafetensorsWriter(const std::filesystem::path& path, const SafetensorsFile& source,
                    const DTypeOf& dtype_of);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // The next bytes of a tensor; tensors come in the order of tensors(). Bytes out of turn are a SLUICE_CHECK.
  void write(std::string_view tensor, const void* data, size_t size_bytes);
  // All bytes must have been written.
  void finish();

 private:
  void start(const std::string& header);

  PendingFile pending_;
  std::vector<TensorInfo> tensors_;
  size_t current_ = 0;     // tensor whose bytes come next
  uint64_t position_ = 0;  // in the file
};

}  // namespace sluice
