#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/finetune/data/piece_text.h"

namespace sluice {

// A step that rewrites text before it is cut. Implementations: NFC, Prepend, Replace. One thread at a time;
// clone() gives another thread its own.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(PieceText& text) const = 0;
  virtual std::unique_ptr<Normalizer> clone() const = 0;
};

using Normalizers = std::vector<std::unique_ptr<Normalizer>>;

// The `normalizer` of a tokenizer.json, flattened: null gives none. Throws Error(data) naming what is not
// supported.
Normalizers normalizers_from_json(const nlohmann::json& normalizer);

// What `text` becomes; for added tokens that match normalised text.
std::string normalized(const Normalizers& normalizers, std::string_view text);

}  // namespace sluice
