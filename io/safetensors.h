#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/dtype.h"
#include "io/file.h"

// The safetensors format (https://github.com/huggingface/safetensors): a 64-bit little-endian header length,
// the header as JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ..., "__metadata__": {...}},
// then the bytes of all tensors without gaps.
namespace sluice {

// What the header says about one tensor.
struct TensorInfo {
  std::string name;
  std::string dtype_name;  // as in the file: "BF16"
  std::optional<DType>
      dtype;  // none where the format knows the type and the engine does not (BOOL, F8_E4M3, ...)
  std::vector<int64_t> shape;  // empty for a scalar
  uint64_t offset = 0;         // of the first byte, from the start of the file
  uint64_t size_bytes = 0;
};

using TensorMetadata = std::vector<std::pair<std::string, std::string>>;

// Product of the dimensions, 1 for a scalar.
int64_t element_count(const std::vector<int64_t>& shape);

// A safetensors file open for reading. The header is hostile input: every length, offset and shape is checked
// against the size of the file before it is used, and what does not fit is an Error of kind `data` that names
// file and tensor. Holds the parsed header and never the data. Immutable after construction: any thread may
// read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their bytes
  const TensorInfo* find(std::string_view name) const;                 // null where there is none
  const TensorMetadata& metadata() const { return metadata_; }
  uint64_t size_bytes() const { return size_bytes_; }
  // Length word and header as they stand in the file: what a copy with the same tensors begins with.
  std::string read_header() const;
  // Bytes [begin, begin + size_bytes) of a tensor of this file.
  void read(const TensorInfo& tensor, uint64_t begin, void* out, size_t size_bytes) const;

 private:
  File file_;
  uint64_t size_bytes_ = 0;
  uint64_t data_offset_ = 0;
  std::vector<TensorInfo> tensors_;
  TensorMetadata metadata_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into tensors_
};

// The parsed header. `text` is the JSON alone; `data_size_bytes` what follows it in the file, where that is
// known; offsets in the result count from the start of the file. Throws as SafetensorsFile does; `path` is
// for messages.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  TensorMetadata metadata;
};
SafetensorsHeader parse_safetensors_header(std::string_view text, std::optional<uint64_t> data_size_bytes,
                                           const std::filesystem::path& path);

// The name of a dtype in the format. SLUICE_CHECK: every DType has one.
std::string_view safetensors_name(DType dtype);

}  // namespace sluice
