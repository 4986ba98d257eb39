#pragma once

#include <string>

#include "apps/finetune/model/gguf_metadata.h"

namespace sluice {

// The files of a Hugging Face tokenizer, made from tokenizer.ggml.* of a GGUF file.
struct TokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
  std::string special_tokens_map_json;
};

// Byte-level BPE (tokenizer.ggml.model "gpt2") with the pre-tokenizers "smollm" and "llama-bpe"; any other is
// refused by name (kind `data`), as are merges of unknown tokens, duplicate tokens and ids out of range.
TokenizerFiles make_tokenizer_files(const GgufMetadata& metadata);

}  // namespace sluice
