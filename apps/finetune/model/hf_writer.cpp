#include "apps/finetune/model/hf_writer.h"

#include <algorithm>
#include <unordered_map>

#include "apps/finetune/model/weight_convert.h"
#include "engine/base/error.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "io/staged_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSlackBytes = uint64_t{1} << 20;  // folders, block rounding

class FolderWriter {
 public:
  FolderWriter(const HfFolder& source, const FillRows& fill, int64_t piece_bytes)
      : source_(source), fill_(fill), piece_elements_(piece_bytes / static_cast<int64_t>(sizeof(float))) {
    for (const ModelTensor& tensor : source.tensors()) weights_[&stored(tensor)] = &tensor;
  }

  void write_file(size_t index, const fs::path& path) {
    const SafetensorsFile& file = source_.files()[index];
    SafetensorsWriter writer(path, file);
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
    const int64_t length = tensor.row_length();
    const int64_t step = std::max<int64_t>(1, piece_elements_ / std::max<int64_t>(1, length));
    for (int64_t begin = 0; begin < tensor.row_count(); begin += step) {
      const int64_t end = std::min(begin + step, tensor.row_count());
      const auto count = static_cast<size_t>((end - begin) * length);
      values_.resize(count);
      bytes_.resize(count * size_bytes(tensor.dtype));
      fill_(tensor, begin, end, values_);
      store_from_float(tensor.dtype, values_.data(), count, bytes_.data());
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
  int64_t piece_elements_;
  std::unordered_map<const TensorInfo*, const ModelTensor*> weights_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

}  // namespace

void check_room_for(const HfFolder& source, const fs::path& output) {
  check_free_space(output, source.size_bytes() + kSlackBytes);
}

void write_hf_folder(const HfFolder& source, const fs::path& output, const FillRows& fill,
                     int64_t piece_bytes) {
  SLUICE_CHECK(piece_bytes >= static_cast<int64_t>(sizeof(float)));
  std::error_code error;
  if (fs::equivalent(source.path(), output, error)) {
    throw Error(ErrorKind::usage,
                "the output folder " + output.string() +
                    " is the model folder itself, whose weights would be lost. Choose another one.");
  }
  check_room_for(source, output);
  StagedFolder staged(output);
  FolderWriter writer(source, fill, piece_bytes);
  std::vector<std::string> names;
  for (size_t i = 0; i < source.files().size(); ++i) {
    names.push_back(source.files()[i].path().filename());
    writer.write_file(i, staged.path_of(names.back()));
  }
  for (const std::string& name : source.other_files()) {
    copy_file_contents(source.path() / name, staged.path_of(name));
    names.push_back(name);
  }
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name != "config.json"; });
  staged.publish(names);
}

}  // namespace sluice
