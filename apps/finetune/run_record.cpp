#include "apps/finetune/run_record.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <xxhash.h>

#include "engine/base/error.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

using Json = nlohmann::ordered_json;

// Settings that are hashes, under names that no option has.
constexpr const char* kModel = "model";
constexpr const char* kData = "data";
constexpr const char* kTokens = "tokens";
constexpr const char* kSteps = "total_steps";
constexpr const char* kConfig = "config";  // config.json itself: a converter has no model at hand
constexpr const char* kStateFormat = "state_format";

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    SLUICE_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK);
  }
  void add(const void* data, size_t size_bytes) { XXH3_64bits_update(state_.get(), data, size_bytes); }
  // With its length, so that "ab" + "c" is not "a" + "bc".
  void add_text(std::string_view text) {
    add_number(static_cast<int64_t>(text.size()));
    add(text.data(), text.size());
  }
  void add_number(int64_t number) { add(&number, sizeof(number)); }
  std::string text() const {
    char digits[20];
    std::snprintf(digits, sizeof digits, "%016llx",
                  static_cast<unsigned long long>(XXH3_64bits_digest(state_.get())));
    return digits;
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::string model_hash(const HfFolder& folder) {
  Hash hash;
  hash.add_text(read_text_file(folder.path() / "config.json"));
  for (const ModelTensor& tensor : folder.tensors()) {
    hash.add_text(tensor.name);
    hash.add_text(sluice::name(tensor.dtype));
    hash.add_number(static_cast<int64_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) hash.add_number(extent);
  }
  return hash.text();
}

std::string file_hash(const std::string& path) {
  const File file = File::open(path);
  Hash hash;
  std::vector<char> piece(size_t{1} << 20);
  const uint64_t size = file.size_bytes();
  for (uint64_t done = 0; done < size; done += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), size - done));
    file.read_at(piece.data(), piece.size(), done);
    hash.add(piece.data(), piece.size());
  }
  return std::to_string(size) + " bytes, xxh3 " + hash.text();
}

std::string token_hash(const Dataset& data) {
  Hash hash;
  for (int64_t i = 0; i < data.size(); ++i) {
    const DatasetRow row = data.row(i);
    hash.add_number(static_cast<int64_t>(row.ids.size()));
    hash.add(row.ids.data(), row.ids.size_bytes());
    hash.add(row.labelled.data(), row.labelled.size_bytes());
  }
  return std::to_string(data.size()) + " rows, xxh3 " + hash.text();
}

std::string text_of(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

[[noreturn]] void refuse(const std::string& key, const std::string& before, const std::string& now,
                         const TrainOptions& options) {
  const std::string run = "the run in " + options.output;
  std::string what = "--" + key + ": " + run + " was begun with " + before + ", this command says " + now;
  if (key == kModel) what = "--model: " + options.model + " is another model than that of " + run;
  if (key == kData) {
    what = "--data: " + options.data.data + " has other contents (" + now + ") than the file that " + run +
           " was begun with (" + before + ")";
  }
  if (key == kTokens) {
    what = "--model: its tokenizer makes other tokens of the data (" + now + ") than when " + run +
           " was begun (" + before + ")";
  }
  if (key == kSteps) {
    what = "--max_steps or --num_train_epochs: " + run + " was begun with " + before +
           " steps in all, this command makes it " + now;
  }
  if (key == kStateFormat) {
    throw Error(ErrorKind::usage, what +
                                      ". Its saved state is in that format. To go on in the other one: "
                                      "finetune convert-state --input " +
                                      options.output + " --state_format " + now);
  }
  throw Error(ErrorKind::usage, what +
                                    ". It could not go on bit for bit. Give the same as then, or begin "
                                    "another run in another --output.");
}

[[noreturn]] void fail_record(const std::string& why) {
  throw Error(ErrorKind::data, "the saved state does not say how far its run had come (" + why +
                                   "). Was it made by another version of finetune?");
}

}  // namespace

Json run_settings(const TrainOptions& options, const TrainSetup& setup) {
  const Json all = options_json(options);
  Json settings;
  for (const char* key : {"compute_dtype", "max_seq_length", "on_bad_row", "per_device_train_batch_size",
                          "gradient_accumulation_steps", "gradient_shards", "seed", "learning_rate",
                          "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2",
                          "adam_epsilon", "max_grad_norm", "optim", kStateFormat, "gradient_dtype"})
    settings[key] = all.at(key);
  settings[kModel] = model_hash(setup.model.folder);
  settings[kConfig] = read_text_file(setup.model.folder.path() / "config.json");
  settings[kData] = file_hash(options.data.data);
  settings[kTokens] = token_hash(*setup.data);
  settings[kSteps] = setup.total_steps;
  return settings;
}

nlohmann::json run_record(const Json& settings, const RunProgress& progress) {
  const RunFacts& facts = progress.facts;
  return {{"settings", nlohmann::json(settings)},
          {"progress",
           {{"steps", facts.steps},
            {"skipped_steps", facts.skipped_steps},
            {"skipped_in_a_row", progress.skipped_in_a_row},
            {"loss", facts.loss},
            {"train_loss", facts.train_loss},
            {"tokens", facts.tokens},
            {"label_tokens", facts.label_tokens},
            {"seconds", facts.seconds},
            {"written_bytes", facts.written_bytes},
            {"epoch", progress.cursor.epoch},
            {"position", progress.cursor.position}}}};
}

RunProgress recorded_progress(const nlohmann::json& record) {
  try {
    const nlohmann::json& saved = record.at("progress");
    RunProgress progress;
    progress.facts.steps = saved.at("steps");
    progress.facts.skipped_steps = saved.at("skipped_steps");
    progress.skipped_in_a_row = saved.at("skipped_in_a_row");
    progress.facts.loss = saved.at("loss");
    progress.facts.train_loss = saved.at("train_loss");
    progress.facts.tokens = saved.at("tokens");
    progress.facts.label_tokens = saved.at("label_tokens");
    progress.facts.seconds = saved.at("seconds");
    progress.facts.written_bytes = saved.value("written_bytes", uint64_t{0});  // not in older records
    progress.cursor = {saved.at("epoch"), saved.at("position")};
    if (progress.facts.steps < 0 || progress.cursor.epoch < 0 || progress.cursor.position < 0)
      fail_record("a count is negative");
    return progress;
  } catch (const nlohmann::json::exception& error) {
    fail_record(error.what());
  }
}

ModelConfig recorded_config(const nlohmann::json& record) {
  try {
    return parse_model_config(record.at("settings").at(kConfig).get<std::string>(), "the saved config.json");
  } catch (const nlohmann::json::exception& error) {
    fail_record(error.what());
  }
}

void record_state_format(nlohmann::json& record, cpu_optim::StateFormat format) {
  record["settings"][kStateFormat] = cpu_optim::name(format);
}

void refuse_changes(const nlohmann::json& record, const Json& settings, const TrainOptions& options) {
  const auto saved = record.is_object() ? record.find("settings") : record.end();
  if (saved == record.end() || !saved->is_object()) fail_record("it has no settings");
  for (const auto& [key, value] : settings.items()) {
    const auto before = saved->find(key);
    if (before == saved->end()) fail_record("it says nothing of " + key);
    if (*before != nlohmann::json(value)) refuse(key, text_of(*before), text_of(value), options);
  }
}

}  // namespace sluice::finetune
