#include "apps/finetune/model/hf_writer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "apps/finetune/model/hf_files.h"
#include "apps/finetune/model/json_edit.h"
#include "apps/finetune/model/weight_convert.h"
#include "engine/base/error.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "io/staged_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlackBytes = uint64_t{1} << 20;  // folders, block rounding

constexpr std::string_view kConfigName = "config.json";

uint64_t element_total(const HfFolder& source) {
  uint64_t total = 0;
  for (const ModelTensor& tensor : source.tensors())
    total += static_cast<uint64_t>(tensor.row_count() * tensor.row_length());
  return total;
}

uint64_t weight_bytes(const HfFolder& source) {
  uint64_t total = 0;
  for (const ModelTensor& tensor : source.tensors())
    total += static_cast<uint64_t>(tensor.row_count() * tensor.row_length()) * size_bytes(tensor.dtype);
  return total;
}

// Bytes that are written more than `source` has, for another dtype of its weights; may be negative.
int64_t growth_bytes(const HfFolder& source, std::optional<DType> dtype) {
  if (!dtype) return 0;
  return static_cast<int64_t>(element_total(source) * size_bytes(*dtype)) -
         static_cast<int64_t>(weight_bytes(source));
}

class FolderWriter {
 public:
  FolderWriter(const HfFolder& source, const FillRows& fill, const HfWriteOptions& options)
      : source_(source),
        fill_(fill),
        dtype_(options.dtype),
        piece_elements_(options.piece_bytes / static_cast<int64_t>(sizeof(float))) {
    for (const ModelTensor& tensor : source.tensors()) weights_[&stored(tensor)] = &tensor;
  }

  void write_file(size_t index, const fs::path& path) {
    const SafetensorsFile& file = source_.files()[index];
    SafetensorsWriter writer(path, file, [this](const TensorInfo& info) {
      return weights_.contains(&info) ? dtype_ : std::nullopt;
    });
    for (const TensorInfo& info : file.tensors()) {
      const auto weight = weights_.find(&info);
      if (weight != weights_.end()) {
        write_weight(writer, *weight->second);
      } else {
        copy(writer, file, info);
      }
    }
    writer.finish();
  }

 private:
  const TensorInfo& stored(const ModelTensor& tensor) const {
    return *source_.files()[tensor.file].find(tensor.stored_name);
  }

  void write_weight(SafetensorsWriter& writer, const ModelTensor& tensor) {
    const DType dtype = dtype_.value_or(tensor.dtype);
    const int64_t length = tensor.row_length();
    const int64_t step = std::max<int64_t>(1, piece_elements_ / std::max<int64_t>(1, length));
    for (int64_t begin = 0; begin < tensor.row_count(); begin += step) {
      const int64_t end = std::min(begin + step, tensor.row_count());
      const auto count = static_cast<size_t>((end - begin) * length);
      values_.resize(count);
      bytes_.resize(count * size_bytes(dtype));
      fill_(tensor, begin, end, values_);
      store_from_float(dtype, values_.data(), count, bytes_.data());
      writer.write(tensor.stored_name, bytes_.data(), bytes_.size());
    }
  }

  // A tensor that is no weight of the model, such as a stored rotary_emb.inv_freq.
  void copy(SafetensorsWriter& writer, const SafetensorsFile& file, const TensorInfo& info) {
    const uint64_t step = static_cast<uint64_t>(piece_elements_) * sizeof(float);
    for (uint64_t begin = 0; begin < info.size_bytes; begin += step) {
      bytes_.resize(std::min(step, info.size_bytes - begin));
      file.read(info, begin, bytes_.data(), bytes_.size());
      writer.write(info.name, bytes_.data(), bytes_.size());
    }
  }

  const HfFolder& source_;
  const FillRows& fill_;
  std::optional<DType> dtype_;
  int64_t piece_elements_;
  std::unordered_map<const TensorInfo*, const ModelTensor*> weights_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

// A file that holds no weights, and may say something of their dtype.
void copy_other_file(const HfFolder& source, const std::string& name, const fs::path& to,
                     std::optional<DType> dtype) {
  if (dtype && name == kConfigName) {
    write_file_atomically(to, with_config_dtype(read_text_file(source.path() / name), *dtype));
  } else if (const int64_t growth = growth_bytes(source, dtype); growth != 0 && name == kIndexName) {
    constexpr std::array<std::string_view, 2> kTotal = {"metadata", "total_size"};
    const auto total = static_cast<int64_t>(weight_bytes(source)) + growth;
    write_file_atomically(
        to, with_json_value(read_text_file(source.path() / name), kTotal, std::to_string(total)));
  } else {
    copy_file_contents(source.path() / name, to);
  }
}

}  // namespace

std::string with_config_dtype(std::string config_json, DType dtype) {
  const std::string_view name = dtype == DType::bf16  ? "\"bfloat16\""
                                : dtype == DType::f16 ? "\"float16\""
                                                      : "\"float32\"";
  for (const std::string_view key : {"torch_dtype", "dtype"})
    config_json = with_json_value(std::move(config_json), std::span(&key, 1), name);
  return config_json;
}

uint64_t written_bytes(const HfFolder& source, std::optional<DType> dtype) {
  return source.size_bytes() + static_cast<uint64_t>(growth_bytes(source, dtype)) + kSlackBytes;
}

void check_room_for(const HfFolder& source, const fs::path& output, std::optional<DType> dtype) {
  check_free_space(output, written_bytes(source, dtype));
}

void write_hf_folder(const HfFolder& source, const fs::path& output, const FillRows& fill,
                     const HfWriteOptions& options) {
  SLUICE_CHECK(options.piece_bytes >= static_cast<int64_t>(sizeof(float)));
  std::error_code error;
  if (fs::equivalent(source.path(), output, error)) {
    throw Error(ErrorKind::usage,
                "the output folder " + output.string() +
                    " is the model folder itself, whose weights would be lost. Choose another one.");
  }
  check_room_for(source, output, options.dtype);
  StagedFolder staged(output);
  FolderWriter writer(source, fill, options);
  std::vector<std::string> names;
  for (size_t i = 0; i < source.files().size(); ++i) {
    names.push_back(source.files()[i].path().filename());
    writer.write_file(i, staged.path_of(names.back()));
  }
  for (const std::string& name : source.other_files()) {
    copy_other_file(source, name, staged.path_of(name), options.dtype);
    names.push_back(name);
  }
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name != kConfigName; });
  staged.publish(names);
}

}  // namespace sluice
