#pragma once

#include <filesystem>

namespace sluice {

// Makes a Hugging Face folder of a GGUF file of architecture llama: config.json, generation_config.json,
// model.safetensors, tokenizer.json, tokenizer_config.json (with the chat template), special_tokens_map.json.
// Every weight becomes bf16, rounded to nearest even, whatever it was; holds one piece of 8 MiB of a tensor
// at a time. Throws kind `data` for a file that is damaged or needs what is not supported (named), `usage`
// where `output` exists and is not empty, `resource` where the disk is too small. On any error nothing is
// left behind.
void import_gguf(const std::filesystem::path& gguf, const std::filesystem::path& output);

}  // namespace sluice
