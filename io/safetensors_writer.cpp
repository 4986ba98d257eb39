#include "io/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

std::string make_header(const std::vector<SafetensorsEntry>& tensors, const TensorMetadata& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) json["__metadata__"][key] = value;
  uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const uint64_t size = static_cast<uint64_t>(element_count(tensor.shape)) * size_bytes(tensor.dtype);
    json[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text = json.dump();
  text.resize(round_up(text.size(), sizeof(uint64_t)), ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
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
