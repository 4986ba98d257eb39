#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

class Header {
 public:
  explicit Header(const TensorMetadata& metadata) {
    for (const auto& [key, value] : metadata) json_["__metadata__"][key] = value;
  }

  void add(const std::string& name, std::string_view dtype_name, const std::vector<int64_t>& shape,
           uint64_t size_bytes) {
    json_[name] = {
        {"dtype", dtype_name}, {"shape", shape}, {"data_offsets", {offset_, offset_ + size_bytes}}};
    offset_ += size_bytes;
  }

  std::string text() const {
    std::string text = json_.dump();
    text.resize(round_up(text.size(), sizeof(uint64_t)), ' ');
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  }

 private:
  nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
  uint64_t offset_ = 0;
};

uint64_t stored_bytes(const std::vector<int64_t>& shape, DType dtype) {
  return static_cast<uint64_t>(element_count(shape)) * size_bytes(dtype);
}

std::string make_header(const std::vector<SafetensorsEntry>& tensors, const TensorMetadata& metadata) {
  Header header(metadata);
  for (const SafetensorsEntry& tensor : tensors) {
    header.add(tensor.name, safetensors_name(tensor.dtype), tensor.shape,
               stored_bytes(tensor.shape, tensor.dtype));
  }
  return header.text();
}

std::string converted_header(const SafetensorsFile& source, const SafetensorsWriter::DTypeOf& dtype_of) {
  Header header(source.metadata());
  bool same = true;
  for (const TensorInfo& tensor : source.tensors()) {
    const std::optional<DType> dtype = dtype_of(tensor);
    if (dtype && tensor.dtype != dtype) {
      same = false;
      header.add(tensor.name, safetensors_name(*dtype), tensor.shape, stored_bytes(tensor.shape, *dtype));
    } else {
      header.add(tensor.name, tensor.dtype_name, tensor.shape, tensor.size_bytes);
    }
  }
  return same ? source.read_header() : header.text();
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<SafetensorsEntry>& tensors,
                                     const TensorMetadata& metadata)
    : pending_(path) {
  start(make_header(tensors, metadata));
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const SafetensorsFile& source)
    : pending_(path) {
  start(source.read_header());
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const SafetensorsFile& source,
                                     const DTypeOf& dtype_of)
    : pending_(path) {
  start(converted_header(source, dtype_of));
}

void SafetensorsWriter::start(const std::string& header) {
  // Reading back what is about to be written keeps one definition of the layout, and catches a duplicate
  // name.
  const std::string_view json = std::string_view(header).substr(sizeof(uint64_t));
  tensors_ = parse_safetensors_header(json, std::nullopt, pending_.file().path()).tensors;
  pending_.file().write_at(header.data(), header.size(), 0);
  position_ = header.size();
}

void SafetensorsWriter::write(std::string_view tensor, const void* data, size_t size_bytes) {
  while (current_ < tensors_.size() && tensors_[current_].name != tensor &&
         position_ == tensors_[current_].offset + tensors_[current_].size_bytes) {
    ++current_;
  }
  SLUICE_CHECK(current_ < tensors_.size() && tensors_[current_].name == tensor, "a tensor out of turn");
  SLUICE_CHECK(size_bytes <= tensors_[current_].offset + tensors_[current_].size_bytes - position_);
  pending_.file().write_at(data, size_bytes, position_);
  position_ += size_bytes;
}

void SafetensorsWriter::finish() {
  SLUICE_CHECK(tensors_.empty() || position_ == tensors_.back().offset + tensors_.back().size_bytes,
               "not all tensors were written");
  pending_.commit();
}

}  // namespace sluice
