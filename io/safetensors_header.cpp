#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/error.h"
#include "io/safetensors.h"

namespace sluice {
namespace {

struct FormatType {
  std::string_view name;
  uint64_t size_bytes;
  std::optional<DType> dtype;
};

// All types of the format (safetensors 0.8, `Dtype`) whose elements are whole bytes.
constexpr std::array<FormatType, 17> kFormatTypes = {{
    {"F32", 4, DType::f32},
    {"BF16", 2, DType::bf16},
    {"F16", 2, DType::f16},
    {"I16", 2, DType::i16},
    {"I32", 4, DType::i32},
    {"I64", 8, DType::i64},
    {"U8", 1, DType::u8},
    {"F64", 8, std::nullopt},
    {"U16", 2, std::nullopt},
    {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},
    {"I8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},
    {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt},
    {"C64", 8, std::nullopt},
}};

const FormatType* find_type(std::string_view name) {
  for (const FormatType& type : kFormatTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

constexpr uint64_t kLargestDimension = std::numeric_limits<int64_t>::max();

// Walks the JSON event by event: no tree is built, and anything that the format does not have ends the parse
// at once. Each handler returns false after setting `problem`.
class HeaderReader final : public nlohmann::json::json_sax_t {
 public:
  std::vector<TensorInfo> tensors;  // offset is still relative to the data
  TensorMetadata metadata;
  std::string problem;

  bool null() override { return fail("null"); }
  bool boolean(bool) override { return fail("true or false"); }
  bool number_integer(int64_t value) override { return fail("the negative number " + std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return fail("the number " + text); }
  bool binary(nlohmann::json::binary_t&) override { return fail("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::shape) {
      if (value > kLargestDimension) return fail("a dimension of " + std::to_string(value));
      current_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets && offset_count_ < 2) {
      offsets_[offset_count_++] = value;
      return true;
    }
    return fail("the number " + std::to_string(value));
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      metadata.emplace_back(key_, std::move(value));
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return fail("a text");
    current_.dtype_name = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside) return enter(Place::header);
    if (place_ != Place::header) return fail("an object");
    if (key_ == "__metadata__") return enter(Place::metadata);
    current_ = TensorInfo{};
    current_.name = key_;
    offset_count_ = 0;
    field_keys_.clear();
    return enter(Place::tensor);
  }

  bool key(std::string& value) override {
    key_ = std::move(value);
    if (place_ == Place::header)
      return names_.insert(key_).second || report("the name " + key_ + " occurs twice");
    if (place_ == Place::metadata) return true;
    if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets")
      return describe("the unknown key " + key_);
    return field_keys_.insert(key_).second || describe("the key " + key_ + " twice");
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (field_keys_.size() != 3) return describe("not all of dtype, shape and data_offsets");
      if (!finish_tensor()) return false;
    }
    return enter(place_ == Place::header ? Place::outside : Place::header);
  }

  bool start_array(size_t) override {
    if (place_ == Place::tensor && key_ == "shape") return enter(Place::shape);
    if (place_ == Place::tensor && key_ == "data_offsets") return enter(Place::offsets);
    return fail("a list");
  }

  bool end_array() override {
    if (place_ == Place::offsets && offset_count_ != 2)
      return describe("data_offsets that are not two numbers");
    return enter(Place::tensor);
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return report("it is no valid JSON at byte " + std::to_string(position + sizeof(uint64_t)));
  }

 private:
  enum class Place { outside, header, metadata, tensor, shape, offsets };

  bool enter(Place place) {
    place_ = place;
    return true;
  }
  bool report(std::string text) {
    problem = std::move(text);
    return false;
  }
  bool describe(const std::string& text) { return report("tensor " + current_.name + " has " + text); }
  bool fail(const std::string& what) {
    if (place_ == Place::outside) return report("it begins with " + what + " where an object must stand");
    if (place_ == Place::header) return report(key_ + " is " + what + " and not an object");
    if (place_ == Place::metadata)
      return report("the metadata key " + key_ + " is " + what + " and not a text");
    return describe(what + " at " + key_);
  }

  bool finish_tensor() {
    const FormatType* type = find_type(current_.dtype_name);
    if (type == nullptr) return describe("the unknown dtype " + current_.dtype_name);
    uint64_t size = type->size_bytes;
    for (const int64_t dimension : current_.shape) {
      if (__builtin_mul_overflow(size, static_cast<uint64_t>(dimension), &size)) {
        return describe("a shape whose size overflows 64 bits");
      }
    }
    if (offsets_[0] > offsets_[1]) return describe("data_offsets that end before they begin");
    if (offsets_[1] - offsets_[0] != size) {
      return describe("data_offsets of " + std::to_string(offsets_[1] - offsets_[0]) +
                      " bytes, but dtype and shape need " + std::to_string(size));
    }
    current_.dtype = type->dtype;
    current_.offset = offsets_[0];
    current_.size_bytes = size;
    tensors.push_back(std::move(current_));
    return true;
  }

  Place place_ = Place::outside;
  std::string key_;
  TensorInfo current_;
  std::array<uint64_t, 2> offsets_{};
  size_t offset_count_ = 0;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> field_keys_;
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& problem) {
  throw Error(ErrorKind::data, "the header of " + path.string() + " is damaged: " + problem +
                                   ". Is this a safetensors file, and was it downloaded completely?");
}

// The bytes of all tensors must follow one another without gap or overlap, up to the end of the file. The
// order of the header's entries is free.
void check_layout(std::vector<TensorInfo>& tensors, std::optional<uint64_t> data_size_bytes,
                  const std::filesystem::path& path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.size_bytes) < std::pair(b.offset, b.size_bytes);
  });
  uint64_t expected = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t end = tensor.offset + tensor.size_bytes;  // equals data_offsets[1], so it cannot overflow
    if (data_size_bytes && end > *data_size_bytes) {
      refuse(path, "tensor " + tensor.name + " ends at byte " + std::to_string(end) +
                       " of the data, but the file has " + std::to_string(*data_size_bytes));
    }
    if (tensor.offset < expected) refuse(path, "tensor " + tensor.name + " overlaps the one before it");
    if (tensor.offset > expected) refuse(path, "there is a hole before tensor " + tensor.name);
    expected = end;
  }
  if (data_size_bytes && expected != *data_size_bytes) {
    refuse(path, std::to_string(*data_size_bytes - expected) + " bytes at the end belong to no tensor");
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const FormatType& type : kFormatTypes) {
    if (type.dtype == dtype) return type.name;
  }
  SLUICE_CHECK(false, "a DType without a name in safetensors");
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension;
  return count;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::optional<uint64_t> data_size_bytes,
                                           const std::filesystem::path& path) {
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) refuse(path, reader.problem);
  check_layout(reader.tensors, data_size_bytes, path);
  const uint64_t data_offset = sizeof(uint64_t) + text.size();
  for (TensorInfo& tensor : reader.tensors) tensor.offset += data_offset;
  return {std::move(reader.tensors), std::move(reader.metadata)};
}

}  // namespace sluice
