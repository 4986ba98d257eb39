#include "apps/finetune/model/hf_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/model/hf_files.h"
#include "apps/finetune/model/hf_writer.h"
#include "apps/finetune/model/json_object.h"
#include "apps/finetune/model/random_weights.h"
#include "apps/finetune/model/weight_convert.h"
#include "io/safetensors_writer.h"
#include "io/staged_folder.h"

namespace sluice::finetune {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceElements = size_t{1} << 20;  // 4 MiB of fp32, and as much as stored
constexpr int64_t kTaskElements = int64_t{16} << 10;
constexpr uint64_t kSlackBytes = uint64_t{1} << 20;  // headers, folders, block rounding
constexpr double kDefaultDeviation = 0.02;

// Those that transformers' save_pretrained writes, of model and tokenizer. A list, as anything may lie beside
// a config.json.
constexpr std::array kBesideConfig = {
    "generation_config.json", "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",        "vocab.json",         "merges.txt",
    "added_tokens.json",      "chat_template.json", "special_tokens_map.json",
    "chat_template.jinja"};

struct Shard {
  std::string name;
  std::vector<SafetensorsEntry> tensors;
  uint64_t size_bytes = 0;
};

uint64_t stored_bytes(const SafetensorsEntry& tensor) {
  return static_cast<uint64_t>(element_count(tensor.shape)) * size_bytes(tensor.dtype);
}

bool is_norm(const std::string& name) {
  return name.ends_with("norm.weight");
}

std::vector<SafetensorsEntry> list_tensors(const ModelConfig& config, DType dtype) {
  std::vector<SafetensorsEntry> list;
  for (const TensorSpec& spec : make_decoder_spec(config).model.tensors) {
    std::vector<int64_t> shape{spec.rows, spec.cols};
    if (is_norm(spec.name)) shape.erase(shape.begin());
    list.push_back({spec.name, dtype, std::move(shape)});
  }
  return list;
}

// As huggingface_hub does (serialization/_base.py): a tensor larger than a file gets one of its own, the
// others fill theirs in order.
std::vector<Shard> cut(std::vector<SafetensorsEntry> tensors, uint64_t max_bytes) {
  std::vector<Shard> shards;
  Shard current;
  const auto close = [&] {
    if (!current.tensors.empty()) shards.push_back(std::move(current));
    current = {};
  };
  for (SafetensorsEntry& tensor : tensors) {
    const uint64_t bytes = stored_bytes(tensor);
    if (bytes > max_bytes) {
      shards.push_back({"", {std::move(tensor)}, bytes});
      continue;
    }
    if (current.size_bytes + bytes > max_bytes) close();
    current.size_bytes += bytes;
    current.tensors.push_back(std::move(tensor));
  }
  close();
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].name = shards.size() == 1 ? std::string(kSingleFileName) : name;
  }
  return shards;
}

std::string index_json(const std::vector<Shard>& shards, const HfInitReport& report) {
  nlohmann::json index;  // sorted keys, as transformers writes them
  index["metadata"] = {{"total_parameters", report.parameters}, {"total_size", report.size_bytes}};
  for (const Shard& shard : shards) {
    for (const SafetensorsEntry& tensor : shard.tensors) index["weight_map"][tensor.name] = shard.name;
  }
  return index.dump(2) + "\n";
}

class WeightWriter {
 public:
  WeightWriter(Executor& executor, uint64_t seed, double deviation)
      : executor_(executor), seed_(seed), deviation_(deviation) {}

  void write(const Shard& shard, const fs::path& path) {
    SafetensorsWriter writer(path, shard.tensors);
    for (const SafetensorsEntry& tensor : shard.tensors) write(tensor, writer);
    writer.finish();
  }

 private:
  void write(const SafetensorsEntry& tensor, SafetensorsWriter& writer) {
    const auto count = static_cast<uint64_t>(element_count(tensor.shape));
    const uint64_t key = weight_key(seed_, tensor.name);
    for (uint64_t begin = 0; begin < count; begin += kPieceElements) {
      values_.resize(std::min<uint64_t>(kPieceElements, count - begin));
      bytes_.resize(values_.size() * size_bytes(tensor.dtype));
      run_ranges(executor_, static_cast<int64_t>(values_.size()), kTaskElements,
                 [&](int64_t first, int64_t last, int) {
                   const size_t at = static_cast<size_t>(first);
                   const std::span<float> out =
                       std::span(values_).subspan(at, static_cast<size_t>(last) - at);
                   if (is_norm(tensor.name)) {
                     std::ranges::fill(out, 1.0F);
                   } else {
                     fill_normal(key, begin + at, deviation_, out);
                   }
                   store_from_float(tensor.dtype, out.data(), out.size(),
                                    bytes_.data() + at * size_bytes(tensor.dtype));
                 });
      writer.write(tensor.name, bytes_.data(), bytes_.size());
    }
  }

  Executor& executor_;
  uint64_t seed_;
  double deviation_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

double deviation_of(const std::string& config_json, const fs::path& file) {
  const JsonObject json = JsonObject::parse(config_json, file);
  const double deviation = json.number("initializer_range").value_or(kDefaultDeviation);
  if (!std::isfinite(deviation) || deviation < 0)
    json.refuse("initializer_range", "is no standard deviation: it must be a number from 0 on");
  return deviation;
}

}  // namespace

HfInitReport init_hf_folder(Executor& executor, const fs::path& config, const fs::path& output,
                            const HfInitOptions& options) {
  refuse_used_output(output);
  const fs::path file = fs::is_directory(config) ? config / "config.json" : config;
  const std::string text = read_text_file(file);
  const ModelConfig model = parse_model_config(text, file);
  const double deviation = deviation_of(text, file);
  HfInitReport report{.dtype = options.dtype.value_or(model.dtype.value_or(DType::bf16))};
  const std::vector<Shard> shards = cut(list_tensors(model, report.dtype), options.max_shard_size);
  for (const Shard& shard : shards) report.size_bytes += shard.size_bytes;
  report.parameters = static_cast<int64_t>(report.size_bytes / size_bytes(report.dtype));
  report.file_count = shards.size();

  check_free_space(output, report.size_bytes + kSlackBytes);
  StagedFolder staged(output);
  std::vector<std::string> names;
  WeightWriter writer(executor, options.seed, deviation);
  for (const Shard& shard : shards) {
    writer.write(shard, staged.path_of(shard.name));
    names.push_back(shard.name);
  }
  if (shards.size() > 1) {
    names.emplace_back(kIndexName);
    write_file_atomically(staged.path_of(names.back()), index_json(shards, report));
  }
  for (const char* name : kBesideConfig) {
    if (!fs::is_regular_file(file.parent_path() / name)) continue;
    copy_file_contents(file.parent_path() / name, staged.path_of(name));
    names.emplace_back(name);
  }
  names.emplace_back("config.json");
  write_file_atomically(staged.path_of("config.json"), with_config_dtype(text, report.dtype));
  staged.publish(names);
  return report;
}

}  // namespace sluice::finetune
