#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/finetune/data/added_tokens.h"
#include "apps/finetune/data/bpe_model.h"
#include "apps/finetune/data/vocabulary.h"

namespace sluice {

// A tokenizer.json, read. The large parts (vocabulary, merges, added tokens) go straight into their tables,
// so that reading takes little more memory than they do; a DOM of Gemma 3's file would take 127 MB.
struct TokenizerJson {
  Vocabulary vocabulary;
  MergeList merges;
  std::vector<AddedToken> added_tokens;
  bool has_vocabulary = false;
  // Everything else: normalizer, pre_tokenizer, post_processor, decoder, model without its vocab and merges.
  nlohmann::json rest;
};

// Throws Error(data) with path, and byte offset where the JSON itself is broken.
TokenizerJson read_tokenizer_json(const std::string& path);

}  // namespace sluice
