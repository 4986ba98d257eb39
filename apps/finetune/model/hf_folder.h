#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/dtype.h"
#include "io/safetensors.h"

namespace sluice {

// A weight of the model. A row is one index of the first dimension; a scalar has one row.
struct ModelTensor {
  std::string name;         // with the prefix "model.", whether the file has it or not
  std::string stored_name;  // as in the file
  DType dtype;              // bf16, f16 or f32
  std::vector<int64_t> shape;
  size_t file = 0;  // index into HfFolder::files()

  int64_t row_count() const { return shape.empty() ? 1 : shape[0]; }
  int64_t row_length() const;  // elements
};

// The weights of a Hugging Face model folder: `model.safetensors` where it exists, else the shards that
// `model.safetensors.index.json` names, else all *.safetensors of the folder but adapters and golden numbers.
// Stored rotary_emb.inv_freq is not a weight. Faults are Errors of kind `data` that name file and tensor.
// Holds the parsed headers and no data; what is read passes through a small buffer. Immutable: any thread may
// read.
class HfFolder {
 public:
  explicit HfFolder(std::filesystem::path folder);
  // Of a folder that need not hold any weights, or other files than config.json: for plans.
  static HfFolder without_weights(std::filesystem::path folder);
  bool has_weights() const { return !files_.empty(); }

  const std::filesystem::path& path() const { return folder_; }
  const std::vector<ModelTensor>& tensors() const {
    return tensors_;
  }                                                      // file by file, in the order of their bytes
  const ModelTensor* find(std::string_view name) const;  // by ModelTensor::name; null where absent
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Names of the files that belong to the model and hold no weights: config, tokenizer, templates, index,
  // licence.
  const std::vector<std::string>& other_files() const { return other_files_; }
  uint64_t size_bytes() const;  // of all these files

  // Rows [begin, end) as fp32: (end - begin) * row_length() floats.
  void read_rows(const ModelTensor& tensor, int64_t begin, int64_t end, float* out) const;
  // Rows [begin, end) as they are stored.
  void read_raw(const ModelTensor& tensor, int64_t begin, int64_t end, void* out) const;

 private:
  HfFolder() = default;
  void open_weights();
  void add_tensors(size_t file);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<ModelTensor> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<std::string> other_files_;
};

}  // namespace sluice
