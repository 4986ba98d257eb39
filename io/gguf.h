#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "io/file.h"
#include "io/gguf_types.h"

// The GGUF format, versions 2 and 3, little-endian
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
namespace sluice {

// A metadata value. All unsigned types are uint64_t, all signed int64_t, float32 stays float, so that its
// shortest decimal form can be printed; a list has the type of its elements (bool as uint64_t). Lists of
// lists are refused.
using GgufValue = std::variant<uint64_t, int64_t, float, double, bool, std::string, std::vector<uint64_t>,
                               std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  const GgufType* type;
  std::vector<int64_t>
      shape;            // outermost first, as everywhere else here (the file has it the other way round)
  uint64_t offset = 0;  // of the first byte, from the start of the file
  uint64_t size_bytes = 0;
};

// A GGUF file open for reading. The header is hostile input: each count, length, offset and shape is checked
// against the size of the file before it is used, and what does not fit is an Error of kind `data` naming
// file, offset and tensor or key. Holds metadata and tensor list, never tensor data. Immutable after
// construction: any thread may read.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the order of the header
  const GgufTensor* find(std::string_view name) const;                 // null where there is none
  const GgufValue* metadata(std::string_view key) const;               // null where there is none

  // Rows [begin, end) of the outermost dimensions taken together, as fp32: (end - begin) * shape.back()
  // floats. A type that is known by name only is refused (kind data). Reads the piece into a buffer of its
  // own, so ask for MiBs.
  void dequantize(const GgufTensor& tensor, int64_t begin, int64_t end, float* out) const;

 private:
  File file_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, GgufValue> metadata_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into tensors_
};

}  // namespace sluice
