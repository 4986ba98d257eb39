#pragma once

#include <string>
#include <string_view>

#include "apps/finetune/model/gguf_metadata.h"
#include "io/gguf.h"

namespace sluice {

// Factors by which llama3 rope scaling divides the frequencies: GGUF keeps them instead of the parameters.
inline constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

// config.json and generation_config.json, spelled so that transformers 4 and 5 read them. Refuses by name
// (kind `data`) other architectures and rope scaling that is neither none nor llama3.
std::string make_config_json(const GgufFile& file);
std::string make_generation_config_json(const GgufMetadata& metadata);

}  // namespace sluice
