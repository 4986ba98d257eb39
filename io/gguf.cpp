#include "io/gguf.h"

#include <memory>

#include "engine/base/error.h"
#include "io/gguf_header.h"

namespace sluice {

GgufFile::GgufFile(const std::filesystem::path& path) : file_(File::open(path)) {
  GgufHeader header = read_gguf_header(file_);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (by_name_.emplace(tensors_[i].name, i).second) continue;
    throw Error(ErrorKind::data, "the header of " + path.string() + " is damaged: tensor " +
                                     tensors_[i].name + " occurs twice.");
  }
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::metadata(std::string_view key) const {
  const auto found = metadata_.find(std::string(key));
  return found == metadata_.end() ? nullptr : &found->second;
}

void GgufFile::dequantize(const GgufTensor& tensor, int64_t begin, int64_t end, float* out) const {
  const GgufType& type = *tensor.type;
  const auto row_blocks = static_cast<uint64_t>(tensor.shape.back()) / type.block_elements;
  const uint64_t row_bytes = row_blocks * type.block_bytes;
  SLUICE_CHECK(0 <= begin && begin <= end && static_cast<uint64_t>(end) * row_bytes <= tensor.size_bytes);
  if (type.dequantize == nullptr) {
    throw Error(ErrorKind::data, "tensor " + tensor.name + " of " + path().string() + " has the type " +
                                     std::string(type.name) +
                                     ", which is not supported. Try a file in F32, F16, BF16, Q8_0 or Q4_1.");
  }
  const auto rows = static_cast<uint64_t>(end - begin);
  const auto blocks = std::make_unique_for_overwrite<std::byte[]>(rows * row_bytes);
  file_.read_at(blocks.get(), rows * row_bytes, tensor.offset + static_cast<uint64_t>(begin) * row_bytes);
  type.dequantize(blocks.get(), rows * row_blocks, out);
}

}  // namespace sluice
