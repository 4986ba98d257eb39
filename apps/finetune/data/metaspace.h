#pragma once

#include <memory>
#include <string>

#include "apps/finetune/data/pre_tokenizer.h"

namespace sluice {

// SentencePiece's way with spaces: each becomes a visible character, and a word starts with one.
struct Metaspace {
  enum class Prepend { always, first, never };
  std::string replacement;  // one character
  Prepend prepend = Prepend::always;
  bool split = true;
};

// Reads the pre-tokenizer or the decoder of this name; throws Error(data).
Metaspace metaspace_from_json(const nlohmann::json& part, const std::string& where);

std::unique_ptr<PreTokenizer> make_metaspace_pre_tokenizer(Metaspace options);

}  // namespace sluice
