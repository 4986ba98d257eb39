#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

inline constexpr std::string_view kSingleFileName = "model.safetensors";
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

// Names of the *.safetensors files of a folder that can be shards of a model, sorted: no adapters, no golden
// numbers.
std::vector<std::string> find_weight_files(const std::filesystem::path& folder);

// Names of the files of a model folder that hold no weights and that a copy of the model needs or should
// keep: JSON, tokenizers, templates, licence, readme; sorted. Hidden files and folders stay out. A symbolic
// link must lead to a file of the same folder or into the blobs of a Hugging Face cache (`../../blobs/`): any
// other would carry a stranger's file into the output, and is an Error of kind `data`.
std::vector<std::string> find_other_files(const std::filesystem::path& folder);

// For a command that makes a new model: throws Error(usage) where `output` exists and is not an empty folder.
void refuse_used_output(const std::filesystem::path& output);

}  // namespace sluice
