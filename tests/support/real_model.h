#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/step_inputs.h"
#include "tests/support/temporary_folder.h"

// SmolLM2-135M-Instruct and what transformers computes with it (README of fixtures/real). Too large for the
// repository: whoever has it names the file.
namespace sluice::test {

// Why there is no real model to test with; empty where there is one: $SLUICE_SMOLLM2_GGUF names the file and
// real/smollm2.json is among the fixtures.
std::string real_model_missing();

// The model as `finetune import` makes it, in a folder of its own that goes with this object. Needs
// real_model_missing() to be empty.
class RealModel {
 public:
  RealModel();

  const std::filesystem::path& gguf() const { return gguf_; }
  std::filesystem::path folder() const { return temporary_ / "model"; }
  // A place that nothing is at yet, removed in the end.
  std::filesystem::path spare(std::string_view name) const { return temporary_ / name; }
  const nlohmann::json& golden() const { return golden_; }

  std::vector<int32_t> text_ids() const;
  std::vector<std::vector<int32_t>> prompts() const;
  std::vector<std::vector<int32_t>> continuations() const;
  // The rows of the fine-tune, one a micro-batch.
  std::vector<finetune::MicroBatch> finetune_batches() const;

 private:
  TemporaryFolder temporary_;
  std::filesystem::path gguf_;
  nlohmann::json golden_;
};

// What the plan of a walk over these has to allow for.
finetune::BatchLimits limits_of(std::span<const finetune::MicroBatch> batches);

}  // namespace sluice::test
