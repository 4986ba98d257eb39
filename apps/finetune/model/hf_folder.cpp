#include "apps/finetune/model/hf_folder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "apps/finetune/model/hf_files.h"
#include "apps/finetune/model/json_object.h"
#include "apps/finetune/model/weight_convert.h"
#include "engine/base/error.h"
#include "io/file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "model.";
constexpr size_t kReadPiece = size_t{1} << 20;

// Models saved without their head have names without the prefix.
std::string canonical_name(const std::string& stored) {
  if (stored.starts_with(kPrefix) || stored.starts_with("lm_head.")) return stored;
  return std::string(kPrefix) + stored;
}

// A buffer that old versions of transformers stored; it follows from the config.
bool is_ignored(std::string_view stored_name) {
  return stored_name.ends_with("rotary_emb.inv_freq");
}

// Shard name of each tensor, from the index.
std::map<std::string, std::string> read_index(const fs::path& file) {
  const JsonObject json = JsonObject::parse(read_text_file(file), file);
  const std::optional<JsonObject> weight_map = json.object("weight_map");
  if (!weight_map) json.refuse("weight_map", "is missing");
  std::map<std::string, std::string> shards;
  for (const std::string& tensor : weight_map->keys()) {
    const std::string shard = weight_map->text(tensor).value_or("");
    if (shard.empty() || shard.starts_with('.') || shard.find('/') != std::string::npos) {
      weight_map->refuse(tensor, "names the file \"" + shard + "\", which is no plain file name");
    }
    shards[tensor] = shard;
  }
  if (shards.empty()) json.refuse("weight_map", "is empty");
  return shards;
}

void check_index(const std::map<std::string, std::string>& shards,
                 const std::vector<SafetensorsFile>& files) {
  for (const auto& [tensor, shard] : shards) {
    for (const SafetensorsFile& file : files) {
      if (file.path().filename() != shard || file.find(tensor) != nullptr) continue;
      throw Error(ErrorKind::data, "tensor " + tensor + " is not in " + file.path().string() +
                                       ", although the index says so. Was the model downloaded completely?");
    }
  }
}

}  // namespace

int64_t ModelTensor::row_length() const {
  int64_t length = 1;
  for (size_t i = 1; i < shape.size(); ++i) length *= shape[i];
  return length;
}

HfFolder::HfFolder(fs::path folder) : folder_(std::move(folder)) {
  if (!fs::is_directory(folder_)) {
    throw Error(ErrorKind::data, "there is no model folder " + folder_.string() + ". Is the path right?");
  }
  open_weights();
  for (size_t i = 0; i < files_.size(); ++i) add_tensors(i);
  if (tensors_.empty())
    throw Error(ErrorKind::data, "the weight files of " + folder_.string() + " hold no tensors.");
  other_files_ = find_other_files(folder_);
}

HfFolder HfFolder::without_weights(fs::path folder) {
  HfFolder result;
  result.folder_ = std::move(folder);
  return result;
}

void HfFolder::open_weights() {
  const fs::path index = folder_ / kIndexName;
  if (fs::exists(folder_ / kSingleFileName)) {
    files_.emplace_back(folder_ / kSingleFileName);
  } else if (fs::exists(index)) {
    const std::map<std::string, std::string> shards = read_index(index);
    std::set<std::string> names;
    for (const auto& [tensor, shard] : shards) names.insert(shard);
    for (const std::string& name : names) {
      if (!fs::exists(folder_ / name)) {
        throw Error(ErrorKind::data, "shard " + (folder_ / name).string() + " is missing, although " +
                                         index.string() + " names it. Was the model downloaded completely?");
      }
      files_.emplace_back(folder_ / name);
    }
    check_index(shards, files_);
  } else {
    for (const std::string& name : find_weight_files(folder_)) files_.emplace_back(folder_ / name);
  }
  if (files_.empty()) {
    throw Error(ErrorKind::data, "there are no weights in " + folder_.string() + ": neither " +
                                     std::string(kSingleFileName) +
                                     " nor other *.safetensors files. (Weights in " +
                                     "pytorch_model.bin are not read; GGUF files are: finetune import.)");
  }
}

void HfFolder::add_tensors(size_t file) {
  for (const TensorInfo& info : files_[file].tensors()) {
    if (is_ignored(info.name)) continue;
    if (info.dtype != DType::bf16 && info.dtype != DType::f16 && info.dtype != DType::f32) {
      throw Error(ErrorKind::data, "tensor " + info.name + " of " + files_[file].path().string() +
                                       " has the dtype " + info.dtype_name +
                                       ", which is not supported; BF16, F16 and F32 are.");
    }
    ModelTensor tensor{canonical_name(info.name), info.name, *info.dtype, info.shape, file};
    const auto [place, inserted] = by_name_.emplace(tensor.name, tensors_.size());
    if (!inserted) {
      throw Error(ErrorKind::data, "tensor " + info.name + " is in " +
                                       files_[tensors_[place->second].file].path().string() +
                                       " and again in " + files_[file].path().string() + ".");
    }
    tensors_.push_back(std::move(tensor));
  }
}

const ModelTensor* HfFolder::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

uint64_t HfFolder::size_bytes() const {
  uint64_t size = 0;
  for (const SafetensorsFile& file : files_) size += file.size_bytes();
  for (const std::string& name : other_files_) size += fs::file_size(folder_ / name);
  return size;
}

void HfFolder::read_raw(const ModelTensor& tensor, int64_t begin, int64_t end, void* out) const {
  SLUICE_CHECK(0 <= begin && begin <= end && end <= tensor.row_count());
  const SafetensorsFile& file = files_[tensor.file];
  const uint64_t row_bytes = static_cast<uint64_t>(tensor.row_length()) * sluice::size_bytes(tensor.dtype);
  file.read(*file.find(tensor.stored_name), static_cast<uint64_t>(begin) * row_bytes, out,
            static_cast<uint64_t>(end - begin) * row_bytes);
}

void HfFolder::read_rows(const ModelTensor& tensor, int64_t begin, int64_t end, float* out) const {
  if (tensor.dtype == DType::f32) return read_raw(tensor, begin, end, out);
  SLUICE_CHECK(0 <= begin && begin <= end && end <= tensor.row_count());
  const SafetensorsFile& file = files_[tensor.file];
  const TensorInfo& info = *file.find(tensor.stored_name);
  const auto total = static_cast<uint64_t>((end - begin) * tensor.row_length());
  const uint64_t first = static_cast<uint64_t>(begin * tensor.row_length()) * sizeof(uint16_t);
  std::vector<uint16_t> piece(std::min<uint64_t>(total, kReadPiece / sizeof(uint16_t)));
  for (uint64_t done = 0; done < total; done += piece.size()) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(piece.size(), total - done));
    file.read(info, first + done * sizeof(uint16_t), piece.data(), count * sizeof(uint16_t));
    load_as_float(tensor.dtype, piece.data(), count, out + done);
  }
}

}  // namespace sluice
