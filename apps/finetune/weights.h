#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "apps/finetune/model/config.h"
#include "apps/finetune/model/hf_folder.h"
#include "engine/memory/tensor_store.h"

namespace sluice::finetune {

// Every tensor of the store from the folder, in pieces of at most 8 MiB of fp32. Throws Error(data), naming
// tensor and file, where one is missing or has another shape.
void load_weights(const HfFolder& folder, TensorStore& store);

// Throws as load_weights would, without reading weights.
void check_weights(const HfFolder& folder, const ModelSpec& model);

// What an export could not show of the training: elements that moved from what `source` holds, as masters in
// fp32, and those of them that the stored dtype rounds back to where they began.
struct ExportReport {
  int64_t moved = 0;
  int64_t unshown = 0;
};

// A folder like `source` with the store's weights (write_hf_folder), in another dtype if one is given. Reads
// the source's weights again meanwhile, piece by piece, to compare. Whoever calls has waited for the last
// update.
ExportReport save_weights(const HfFolder& source, const TensorStore& store,
                          const std::filesystem::path& output, std::optional<DType> dtype = {});

}  // namespace sluice::finetune
