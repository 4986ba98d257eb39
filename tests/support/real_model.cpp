#include "tests/support/real_model.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "apps/finetune/model/gguf_import.h"
#include "tests/support/golden.h"

namespace sluice::test {
namespace {

using finetune::MicroBatch;

constexpr const char* kVariable = "SLUICE_SMOLLM2_GGUF";

std::filesystem::path golden_path() {
  return fixtures_folder() / "real" / "smollm2.json";
}

}  // namespace

std::string real_model_missing() {
  const char* gguf = std::getenv(kVariable);
  if (gguf == nullptr || *gguf == 0) return std::string(kVariable) + " does not name the file";
  if (!std::filesystem::exists(gguf)) return std::string(gguf) + " does not exist";
  if (!std::filesystem::exists(golden_path())) return golden_path().string() + " does not exist";
  return {};
}

RealModel::RealModel() : gguf_(std::getenv(kVariable)) {
  std::ifstream json(golden_path());
  golden_ = nlohmann::json::parse(json);
  import_gguf(gguf_, folder());
}

std::vector<int32_t> RealModel::text_ids() const {
  return golden_.at("text").at("ids").get<std::vector<int32_t>>();
}

std::vector<std::vector<int32_t>> RealModel::prompts() const {
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& entry : golden_.at("generate"))
    prompts.push_back(entry.at("prompt_ids").get<std::vector<int32_t>>());
  return prompts;
}

std::vector<std::vector<int32_t>> RealModel::continuations() const {
  std::vector<std::vector<int32_t>> continuations;
  for (const auto& entry : golden_.at("generate"))
    continuations.push_back(entry.at("greedy_ids").get<std::vector<int32_t>>());
  return continuations;
}

std::vector<MicroBatch> RealModel::finetune_batches() const {
  std::vector<MicroBatch> batches;
  for (const auto& row : golden_.at("finetune").at("rows")) {
    batches.push_back(make_batch({row.at("ids").get<std::vector<int32_t>>()},
                                 {row.at("labels").get<std::vector<int32_t>>()}));
  }
  return batches;
}

finetune::BatchLimits limits_of(std::span<const MicroBatch> batches) {
  finetune::BatchLimits limits{.micro_batch_count = static_cast<int>(batches.size())};
  for (const MicroBatch& batch : batches) {
    limits.tokens = std::max(limits.tokens, static_cast<int64_t>(batch.tokens.size()));
    limits.rows = std::max(limits.rows, static_cast<int64_t>(batch.row_sources.size()));
    for (const int32_t position : batch.positions)
      limits.tokens_per_row = std::max(limits.tokens_per_row, int64_t{position} + 1);
  }
  return limits;
}

}  // namespace sluice::test
