#include <algorithm>
#include <cstdio>
#include <memory>
#include <xxhash.h>

#include "apps/finetune/run_record.h"
#include "engine/base/error.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace

Json run_settings(const TrainOptions& options, const TrainSetup& setup) {
  const Json all = options_json(options);
  Json settings;
  for (const char* key :
       {"compute_dtype", "max_seq_length", "on_bad_row", "per_device_train_batch_size",
        "gradient_accumulation_steps", "gradient_shards", "seed", "learning_rate", "lr_scheduler_type",
        "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "optim",
        setting_name::kStateFormat, "gradient_dtype"})
    settings[key] = all.at(key);
  settings[setting_name::kModel] = model_hash(setup.model.folder);
  settings[setting_name::kConfig] = read_text_file(setup.model.folder.path() / "config.json");
  settings[setting_name::kData] = file_hash(options.data.data);
  settings[setting_name::kTokens] = token_hash(*setup.data);
  settings[setting_name::kSteps] = setup.total_steps;
  return settings;
}

}  // namespace sluice::finetune
