#include <unordered_set>

#include "engine/base/error.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temporary_folder.h"

namespace sluice::test {
namespace {

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + header + data;
}

// Without gap or overlap, to the end of the file, in the order of the bytes.
void check_layout(const SafetensorsFile& file, std::string_view bytes) {
  uint64_t at = file.read_header().size();
  std::unordered_set<std::string> names;
  for (const TensorInfo& tensor : file.tensors()) {
    promise(tensor.offset == at, "tensors follow one another without gap or overlap");
    promise(tensor.size_bytes <= bytes.size() - at, "tensors lie inside the file");
    at += tensor.size_bytes;
    promise(names.insert(tensor.name).second, "names are unique");
    promise(file.find(tensor.name) == &tensor, "a tensor is found by its name");
    if (tensor.dtype) {
      uint64_t bytes_by_shape = size_bytes(*tensor.dtype);
      for (const int64_t dimension : tensor.shape) {
        promise(dimension >= 0 && !__builtin_mul_overflow(bytes_by_shape, static_cast<uint64_t>(dimension),
                                                          &bytes_by_shape),
                "shapes can be multiplied out");
      }
      promise(bytes_by_shape == tensor.size_bytes, "size and shape agree");
    }
    std::string data(tensor.size_bytes, '\0');
    file.read(tensor, 0, data.data(), data.size());
    promise(data == bytes.substr(tensor.offset, tensor.size_bytes), "the bytes are those of the file");
  }
  promise(at == bytes.size(), "every byte belongs to a tensor");
}

void check_copy(const SafetensorsFile& file, std::string_view bytes) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "copy", file);
  for (const TensorInfo& tensor : file.tensors())
    writer.write(tensor.name, bytes.data() + tensor.offset, tensor.size_bytes);
  writer.finish();
  promise(read_all(folder / "copy") == bytes, "a copy with the source's header is equal byte for byte");
}

}  // namespace

Verdict check_safetensors(std::string_view bytes) {
  const InputFile input(bytes);
  return verdict_of([&] {
    const SafetensorsFile file(input.path());
    check_layout(file, bytes);
    check_copy(file, bytes);
  });
}

std::vector<std::string> safetensors_seeds() {
  return {
      file_of("{}", ""),
      file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "abcd"),
      file_of(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
              R"("a":{"dtype":"I16","shape":[1,2],"data_offsets":[0,4]}}      )",
              "0123456789abcdef"),
      file_of(R"({"e":{"dtype":"F8_E4M3","shape":[0,5],"data_offsets":[3,3]},)"
              R"("u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
              "xyz"),
  };
}

}  // namespace sluice::test
