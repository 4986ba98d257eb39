#include "apps/finetune/run_setup.h"

#include <algorithm>
#include <malloc.h>
#include <nlohmann/json.hpp>

#include "apps/finetune/model/decoder_spec.h"
#include "apps/finetune/model/hf_files.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"
#include "gpu/host/kernel_table.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

// Beyond the plan's other parts: a step's inputs, the pieces of loading and saving (8 MiB as fp32 and once
// more as stored), what is touched of the streams' stacks. Measured with SmolLM2-135M, 4 micro-batches a step
// in fp32: the process peaked at 2764 MB, the plan with this number says 2766 MB.
constexpr size_t kRunningBytes = size_t{16} << 20;

// tokenizer_config.json: a text, or an object with "content".
std::string eos_text(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(file)) return "";
  const nlohmann::json json = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (!json.is_object())
    throw Error(ErrorKind::data, file.string() + " holds no JSON object. Was it downloaded completely?");
  const nlohmann::json token = json.value("eos_token", nlohmann::json());
  if (token.is_string()) return token;
  return token.is_object() && token.contains("content") && token["content"].is_string() ? token["content"]
                                                                                        : "";
}

}  // namespace

OpenModel open_model(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    throw Error(ErrorKind::data, "there is no model folder " + path + ". Is the path right?");
  }
  OpenModel model{read_model_config(path), HfFolder(path)};
  check_weights(model.folder, make_decoder_spec(model.config).model);
  return model;
}

OpenModel open_model_shape(const std::string& path) {
  std::filesystem::path folder = path;
  if (std::filesystem::is_regular_file(folder)) {
    return {parse_model_config(read_text_file(folder), folder),
            HfFolder::without_weights(std::filesystem::absolute(folder).parent_path())};
  }
  const bool weights = std::filesystem::exists(folder / kSingleFileName) ||
                       std::filesystem::exists(folder / kIndexName) || !find_weight_files(folder).empty();
  if (weights || !std::filesystem::exists(folder / "config.json")) return open_model(path);
  return {read_model_config(folder), HfFolder::without_weights(folder)};
}

Tokenizer open_tokenizer(const OpenModel& model) {
  return Tokenizer((model.folder.path() / "tokenizer.json").string());
}

int32_t end_token(const OpenModel& model, const Tokenizer& tokenizer) {
  const std::string text = eos_text(model.folder.path());
  if (const int32_t id = text.empty() ? -1 : tokenizer.token_to_id(text); id >= 0) return id;
  std::vector<int64_t> ids = model.config.eos_token_ids;
  if (ids.empty()) ids = generation_end_tokens(model.folder.path(), model.config);
  return ids.empty() ? -1 : static_cast<int32_t>(ids[0]);
}

void check_ids(std::span<const int32_t> ids, const ModelConfig& config, const std::string& source) {
  for (const int32_t id : ids) {
    if (id < config.vocab_size) continue;
    throw Error(ErrorKind::data,
                source + ": token id " + std::to_string(id) + " is outside of the model's vocabulary of " +
                    std::to_string(config.vocab_size) +
                    " (vocab_size in config.json). Do tokenizer.json and the weights belong together?");
  }
}

std::unique_ptr<Dataset> open_data(const OpenModel& model, Tokenizer& tokenizer, const DataOptions& options) {
  auto data = std::make_unique<Dataset>(
      Dataset::read(options.data, tokenizer,
                    {.max_seq_length = static_cast<int32_t>(options.max_seq_length),
                     .eos_token_id = end_token(model, tokenizer),
                     .on_bad_row = options.on_bad_row == OnBadRow::skip ? sluice::OnBadRow::skip
                                                                        : sluice::OnBadRow::fail}));
  for (int64_t row = 0; row < data->size(); ++row)
    check_ids(data->row(row).ids, model.config, data->source(row));
  return data;
}

Runtime open_runtime(const EngineOptions& options, std::optional<TraceWindow> trace) {
  return make_runtime({.thread_count = static_cast<int>(options.threads),
                       .delay_seed = options.delay_seed,
                       .check_hazards = options.check_hazards,
                       .trace = trace});
}

DType compute_dtype(const EngineOptions& options) {
  return options.compute_dtype.value_or(gpu::host::preferred_compute_dtype());
}

std::optional<size_t> device_limit(const EngineOptions& options) {
  if (!options.device_memory) return std::nullopt;
  return static_cast<size_t>(*options.device_memory);
}

PlanPart process_base() {
  ::malloc_trim(0);  // of reading the tokenizer and the data
  return {"process base", Tier::host, resident_bytes() + kRunningBytes, 0};
}

}  // namespace sluice::finetune
