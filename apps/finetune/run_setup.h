#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/finetune/data/batcher.h"
#include "apps/finetune/data/dataset.h"
#include "apps/finetune/data/micro_batch.h"
#include "apps/finetune/data/tokenizer.h"
#include "apps/finetune/model/config.h"
#include "apps/finetune/model/hf_folder.h"
#include "apps/finetune/options.h"
#include "apps/finetune/runtime.h"
#include "engine/schedule/plan.h"

// Options to what a command works on. Everything is checked that can be without reading weights or making
// memory.
namespace sluice::finetune {

struct OpenModel {
  ModelConfig config;
  HfFolder folder;
};

// Config, headers, and that the weight files hold every tensor in its shape.
OpenModel open_model(const std::string& path);
// The same of a folder with weights; else of config.json alone, by its folder or its own path.
OpenModel open_model_shape(const std::string& path);
Tokenizer open_tokenizer(const OpenModel& model);

// The token that ends a text in training: the tokenizer's eos_token (tokenizer_config.json), else the first
// of config.json or generation_config.json; -1 if there is none.
int32_t end_token(const OpenModel& model, const Tokenizer& tokenizer);

// Rows as tokens. Throws Error(data) too where a token is outside of the model's vocabulary.
std::unique_ptr<Dataset> open_data(const OpenModel& model, Tokenizer& tokenizer, const DataOptions& options);

// Throws Error(data) where an id is outside of the model's vocabulary; `source` says where it stands.
void check_ids(std::span<const int32_t> ids, const ModelConfig& config, const std::string& source);

Runtime open_runtime(const EngineOptions& options, std::optional<TraceWindow> trace = {});
DType compute_dtype(const EngineOptions& options);
std::optional<size_t> device_limit(const EngineOptions& options);

// What the process holds beside the plan's other parts: what it has now, which is the program, its threads,
// and data already read, and what running will add (kernels made at run time, buffers of loading and saving).
PlanPart process_base();

}  // namespace sluice::finetune
