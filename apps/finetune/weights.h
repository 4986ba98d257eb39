#pragma once

#include <filesystem>

#include "apps/finetune/model/config.h"
#include "apps/finetune/model/hf_folder.h"
#include "engine/memory/tensor_store.h"

namespace sluice::finetune {

// Every tensor of the store from the folder, in pieces of at most 8 MiB of fp32. Throws Error(data), naming
// tensor and file, where one is missing or has another shape.
void load_weights(const HfFolder& folder, TensorStore& store);

// Throws as load_weights would, without reading weights.
void check_weights(const HfFolder& folder, const ModelSpec& model);

// A folder like `source` with the store's weights (write_hf_folder). Whoever calls has waited for the last
// update.
void save_weights(const HfFolder& source, const TensorStore& store, const std::filesystem::path& output);

}  // namespace sluice::finetune
