#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "apps/finetune/data/piece_text.h"

namespace sluice {

// A step that cuts the text into the words that the model sees. Implementations: Split, ByteLevel, Digits,
// Punctuation, Metaspace. One thread at a time; clone() gives another thread its own.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(PieceText& text) const = 0;
  virtual std::unique_ptr<PreTokenizer> clone() const = 0;
};

using PreTokenizers = std::vector<std::unique_ptr<PreTokenizer>>;

// Where a ByteLevel step turns bytes into the characters of byte_alphabet.h.
enum class ByteMapping {
  in_text,   // it rewrites the text: right for every file, slow
  in_model,  // it leaves the bytes, and the model reads them (Alphabet::bytes); only where ByteLevel is the
             // last step
};

// The `pre_tokenizer` of a tokenizer.json, flattened: null gives none. Throws Error(data) naming what is not
// supported.
PreTokenizers pre_tokenizers_from_json(const nlohmann::json& pre_tokenizer, ByteMapping mapping);

// Whether the last step is ByteLevel, and the only one of its kind.
bool ends_in_byte_level(const nlohmann::json& pre_tokenizer);

}  // namespace sluice
