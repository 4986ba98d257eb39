#include "io/gguf_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

// Limits that no honest file comes near: the largest headers (256k tokens, 500k merges, chat template) have
// 20 MB.
constexpr uint64_t kLargestHeader = uint64_t{1} << 30;
constexpr uint64_t kLargestAlignment = uint64_t{1} << 20;
constexpr uint32_t kMostDimensions = 4;  // GGML_MAX_DIMS
constexpr size_t kReadAhead = size_t{1} << 20;

// Fewest bytes that an entry can take: key length, key, value type, one byte; name length, dimension count,
// one dimension, type, offset. They bound the counts before anything is allocated.
constexpr uint64_t kSmallestPair = 8 + 4 + 1;
constexpr uint64_t kSmallestTensor = 8 + 4 + 8 + 4 + 8;

// Reads the header front to back, and knows where it is when something is wrong.
class Cursor {
 public:
  explicit Cursor(const File& file)
      : file_(file), file_size_(file.size_bytes()), limit_(std::min(file_size_, kLargestHeader)) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return limit_ - position_; }
  uint64_t file_size() const { return file_size_; }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw Error(ErrorKind::data, "the header of " + file_.path().string() + " is damaged at offset " +
                                     std::to_string(position_) + ": " + problem +
                                     ". Is this a GGUF file, and was it downloaded completely?");
  }

  template <class T>
  T number(std::string_view what) {
    T value;
    take(&value, sizeof(value), what);
    return value;
  }

  std::string text(std::string_view what) {
    const auto size = number<uint64_t>(what);
    if (size > remaining())
      refuse(std::string(what) + " has " + std::to_string(size) + " bytes, more than are left");
    std::string value(size, '\0');
    take(value.data(), value.size(), what);
    return value;
  }

 private:
  void take(void* out, size_t size, std::string_view what) {
    if (size > remaining()) refuse("the file ends inside " + std::string(what));
    if (size > buffer_.size()) {
      file_.read_at(out, size, position_);
    } else {
      if (position_ < buffer_offset_ || position_ + size > buffer_offset_ + buffer_size_) fill();
      std::memcpy(out, buffer_.data() + (position_ - buffer_offset_), size);
    }
    position_ += size;
  }

  void fill() {
    buffer_offset_ = position_;
    buffer_size_ = static_cast<size_t>(std::min<uint64_t>(buffer_.size(), remaining()));
    file_.read_at(buffer_.data(), buffer_size_, position_);
  }

  const File& file_;
  uint64_t file_size_;
  uint64_t limit_;
  uint64_t position_ = 0;
  std::vector<char> buffer_ = std::vector<char>(kReadAhead);
  uint64_t buffer_offset_ = 0;
  size_t buffer_size_ = 0;
};

// `enum gguf_metadata_value_type`
enum class ValueType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, list, u64, i64, f64 };

uint64_t smallest_size(ValueType type) {
  constexpr std::array<uint64_t, 13> kSizes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return kSizes[static_cast<size_t>(type)];
}

ValueType read_type(Cursor& cursor, const std::string& key) {
  const auto type = cursor.number<uint32_t>(key);
  if (type > static_cast<uint32_t>(ValueType::f64)) {
    cursor.refuse(key + " has the unknown value type " + std::to_string(type));
  }
  return static_cast<ValueType>(type);
}

uint64_t read_unsigned(Cursor& cursor, ValueType type, const std::string& key) {
  switch (type) {
    case ValueType::u8:
    case ValueType::boolean:
      return cursor.number<uint8_t>(key);
    case ValueType::u16:
      return cursor.number<uint16_t>(key);
    case ValueType::u32:
      return cursor.number<uint32_t>(key);
    default:
      return cursor.number<uint64_t>(key);
  }
}

int64_t read_signed(Cursor& cursor, ValueType type, const std::string& key) {
  switch (type) {
    case ValueType::i8:
      return cursor.number<int8_t>(key);
    case ValueType::i16:
      return cursor.number<int16_t>(key);
    case ValueType::i32:
      return cursor.number<int32_t>(key);
    default:
      return cursor.number<int64_t>(key);
  }
}

template <class T, class ReadOne>
std::vector<T> read_elements(uint64_t count, const ReadOne& read_one) {
  std::vector<T> elements;
  elements.reserve(count);
  for (uint64_t i = 0; i < count; ++i) elements.push_back(read_one());
  return elements;
}

GgufValue read_list(Cursor& cursor, const std::string& key) {
  const ValueType type = read_type(cursor, key);
  const auto count = cursor.number<uint64_t>(key);
  if (type == ValueType::list) cursor.refuse(key + " is a list of lists, which is not supported");
  if (count > cursor.remaining() / smallest_size(type)) {
    cursor.refuse(key + " claims " + std::to_string(count) + " elements, more than the file can hold");
  }
  switch (type) {
    case ValueType::text:
      return read_elements<std::string>(count, [&] { return cursor.text(key); });
    case ValueType::f32:
      return read_elements<double>(count, [&] { return double{cursor.number<float>(key)}; });
    case ValueType::f64:
      return read_elements<double>(count, [&] { return cursor.number<double>(key); });
    case ValueType::i8:
    case ValueType::i16:
    case ValueType::i32:
    case ValueType::i64:
      return read_elements<int64_t>(count, [&] { return read_signed(cursor, type, key); });
    default:
      return read_elements<uint64_t>(count, [&] { return read_unsigned(cursor, type, key); });
  }
}

GgufValue read_value(Cursor& cursor, const std::string& key) {
  const ValueType type = read_type(cursor, key);
  switch (type) {
    case ValueType::text:
      return cursor.text(key);
    case ValueType::list:
      return read_list(cursor, key);
    case ValueType::f32:
      return cursor.number<float>(key);
    case ValueType::f64:
      return cursor.number<double>(key);
    case ValueType::boolean: {
      const auto value = cursor.number<uint8_t>(key);
      if (value > 1) cursor.refuse(key + " is a bool with the value " + std::to_string(value));
      return value == 1;
    }
    case ValueType::i8:
    case ValueType::i16:
    case ValueType::i32:
    case ValueType::i64:
      return read_signed(cursor, type, key);
    default:
      return read_unsigned(cursor, type, key);
  }
}

// Dimensions as they stand in the file: innermost first.
std::vector<uint64_t> read_dimensions(Cursor& cursor, const std::string& name) {
  const auto count = cursor.number<uint32_t>(name);
  if (count < 1 || count > kMostDimensions) {
    cursor.refuse("tensor " + name + " has " + std::to_string(count) + " dimensions");
  }
  std::vector<uint64_t> dimensions(count);
  for (uint64_t& dimension : dimensions) {
    dimension = cursor.number<uint64_t>(name);
    if (dimension < 1 || dimension > std::numeric_limits<int64_t>::max()) {
      cursor.refuse("tensor " + name + " has a dimension of " + std::to_string(dimension));
    }
  }
  return dimensions;
}

// `offset` is left relative to the tensor data, whose start is known only after the last tensor.
GgufTensor read_tensor(Cursor& cursor) {
  GgufTensor tensor;
  tensor.name = cursor.text("a tensor's name");
  const std::vector<uint64_t> dimensions = read_dimensions(cursor, tensor.name);
  tensor.shape.assign(dimensions.rbegin(), dimensions.rend());
  const auto type = cursor.number<uint32_t>(tensor.name);
  tensor.type = find_gguf_type(type);
  if (tensor.type == nullptr)
    cursor.refuse("tensor " + tensor.name + " has the unknown type " + std::to_string(type));
  if (dimensions[0] % tensor.type->block_elements != 0) {
    cursor.refuse("tensor " + tensor.name + " has rows of " + std::to_string(dimensions[0]) +
                  " elements, no multiple of the " + std::to_string(tensor.type->block_elements) +
                  " in a block of " + std::string(tensor.type->name));
  }
  bool overflow = __builtin_mul_overflow(dimensions[0] / tensor.type->block_elements,
                                         uint64_t{tensor.type->block_bytes}, &tensor.size_bytes);
  uint64_t elements = dimensions[0];
  for (size_t i = 1; i < dimensions.size(); ++i) {
    overflow |= __builtin_mul_overflow(tensor.size_bytes, dimensions[i], &tensor.size_bytes);
    overflow |= __builtin_mul_overflow(elements, dimensions[i], &elements);
  }
  if (overflow || elements > std::numeric_limits<int64_t>::max()) {
    cursor.refuse("tensor " + tensor.name + " has a shape whose size overflows 64 bits");
  }
  tensor.offset = cursor.number<uint64_t>(tensor.name);
  return tensor;
}

uint64_t alignment_of(const GgufHeader& header, const Cursor& cursor) {
  const auto found = header.metadata.find("general.alignment");
  if (found == header.metadata.end()) return 32;
  const auto* value = std::get_if<uint64_t>(&found->second);
  if (value == nullptr || !std::has_single_bit(*value) || *value > kLargestAlignment) {
    cursor.refuse("general.alignment is no power of two up to " + std::to_string(kLargestAlignment));
  }
  return *value;
}

// Makes offsets count from the start of the file; every tensor must lie inside it, and no two may overlap.
void place_tensors(GgufHeader& header, const Cursor& cursor) {
  const uint64_t alignment = alignment_of(header, cursor);
  const uint64_t data = round_up(cursor.position(), alignment);
  const uint64_t available = data < cursor.file_size() ? cursor.file_size() - data : 0;
  std::vector<const GgufTensor*> order;
  for (GgufTensor& tensor : header.tensors) {
    if (tensor.offset % alignment != 0) {
      cursor.refuse("tensor " + tensor.name + " begins at " + std::to_string(tensor.offset) +
                    ", no multiple of the alignment " + std::to_string(alignment));
    }
    if (tensor.offset > available || tensor.size_bytes > available - tensor.offset) {
      cursor.refuse("tensor " + tensor.name + " takes " + std::to_string(tensor.size_bytes) + " bytes from " +
                    std::to_string(tensor.offset) + " on, but the file has only " +
                    std::to_string(available));
    }
    tensor.offset += data;
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->size_bytes > order[i]->offset) {
      cursor.refuse("tensor " + order[i]->name + " overlaps " + order[i - 1]->name);
    }
  }
}

void check_version(Cursor& cursor) {
  if (cursor.number<uint32_t>("the magic number") != 0x46554747) cursor.refuse("it does not begin with GGUF");
  const auto version = cursor.number<uint32_t>("the version");
  if (version == 2 || version == 3) return;
  if (version == 0x02000000 || version == 0x03000000)
    cursor.refuse("it is big-endian, which is not supported");
  cursor.refuse("version " + std::to_string(version) + " of the format is not supported (2 and 3 are)");
}

}  // namespace

GgufHeader read_gguf_header(const File& file) {
  Cursor cursor(file);
  check_version(cursor);
  const auto tensor_count = cursor.number<uint64_t>("the tensor count");
  const auto pair_count = cursor.number<uint64_t>("the metadata count");
  if (pair_count > cursor.remaining() / kSmallestPair ||
      tensor_count > cursor.remaining() / kSmallestTensor) {
    cursor.refuse("it claims " + std::to_string(tensor_count) + " tensors and " + std::to_string(pair_count) +
                  " metadata values, more than the file can hold");
  }
  GgufHeader header;
  for (uint64_t i = 0; i < pair_count; ++i) {
    std::string key = cursor.text("a metadata key");
    GgufValue value = read_value(cursor, key);
    if (!header.metadata.emplace(key, std::move(value)).second)
      cursor.refuse("the key " + key + " occurs twice");
  }
  for (uint64_t i = 0; i < tensor_count; ++i) header.tensors.push_back(read_tensor(cursor));
  place_tensors(header, cursor);
  return header;
}

}  // namespace sluice
