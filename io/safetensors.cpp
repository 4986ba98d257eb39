#include "io/safetensors.h"

#include <bit>

#include "engine/base/error.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so are we");

// The limit of the reference implementation; a header of a thousand tensors has about 0.1 MB.
constexpr uint64_t kLargestHeader = 100'000'000;

uint64_t read_header_size(const File& file, uint64_t file_size) {
  uint64_t size = 0;
  if (file_size < sizeof(size)) {
    throw Error(ErrorKind::data, file.path().string() + " has " + std::to_string(file_size) +
                                     " bytes, too few for a safetensors file. Was it downloaded completely?");
  }
  file.read_at(&size, sizeof(size), 0);
  if (size > kLargestHeader || size > file_size - sizeof(size)) {
    throw Error(ErrorKind::data, file.path().string() + " claims a header of " + std::to_string(size) +
                                     " bytes, but the file has " + std::to_string(file_size) +
                                     " (and the format allows " + std::to_string(kLargestHeader) +
                                     "). Is this a safetensors file, and was it downloaded completely?");
  }
  return size;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(File::open(path)), size_bytes_(file_.size_bytes()) {
  data_offset_ = sizeof(uint64_t) + read_header_size(file_, size_bytes_);
  const std::string header = read_header();
  const std::string_view json = std::string_view(header).substr(sizeof(uint64_t));
  SafetensorsHeader parsed = parse_safetensors_header(json, size_bytes_ - data_offset_, path);
  tensors_ = std::move(parsed.tensors);
  metadata_ = std::move(parsed.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::string SafetensorsFile::read_header() const {
  std::string header(data_offset_, '\0');
  file_.read_at(header.data(), header.size(), 0);
  return header;
}

void SafetensorsFile::read(const TensorInfo& tensor, uint64_t begin, void* out, size_t size_bytes) const {
  SLUICE_CHECK(begin <= tensor.size_bytes && size_bytes <= tensor.size_bytes - begin);
  try {
    file_.read_at(out, size_bytes, tensor.offset + begin);
  } catch (const Error& error) {
    throw Error(error.kind(), "tensor " + tensor.name + ": " + error.what());
  }
}

}  // namespace sluice
