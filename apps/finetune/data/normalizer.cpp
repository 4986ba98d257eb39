#include "apps/finetune/data/normalizer.h"

#include <nlohmann/json.hpp>

#include "apps/finetune/data/json_fields.h"
#include "apps/finetune/data/nfc.h"
#include "apps/finetune/data/text_pattern.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(PieceText& text) const override {
    text.rewrite([](std::string_view, uint32_t) { return true; },
                 [this](std::string_view view, PieceText::Writer& writer) {
                   writer.put(prefix_, 0);
                   writer.keep(0, view.size());
                 });
  }
  std::unique_ptr<Normalizer> clone() const override { return std::make_unique<Prepend>(*this); }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(PieceText& text) const override { replace_all(text, pattern_, content_); }
  std::unique_ptr<Normalizer> clone() const override { return std::make_unique<Replace>(*this); }

 private:
  Regex pattern_;
  std::string content_;
};

void add(const nlohmann::json& part, Normalizers& out) {
  if (part.is_null()) return;
  const std::string type = string_field(part, "type", "normalizer");
  if (type == "Sequence") {
    for (const nlohmann::json& inner : array_field(part, "normalizers", "normalizer Sequence"))
      add(inner, out);
  } else if (type == "NFC") {
    out.push_back(make_nfc());
  } else if (type == "Prepend") {
    out.push_back(std::make_unique<Prepend>(string_field(part, "prepend", "normalizer Prepend")));
  } else if (type == "Replace") {
    out.push_back(std::make_unique<Replace>(pattern_from_json(field(part, "pattern", "normalizer Replace")),
                                            string_field(part, "content", "normalizer Replace")));
  } else {
    throw Error(ErrorKind::data, "the normalizer " + type + " is not supported");
  }
}

}  // namespace

Normalizers normalizers_from_json(const nlohmann::json& normalizer) {
  Normalizers result;
  add(normalizer, result);
  return result;
}

std::string normalized(const Normalizers& normalizers, std::string_view text) {
  PieceText pieces;
  pieces.reset(text);
  for (const auto& normalizer : normalizers) normalizer->apply(pieces);
  return std::string(pieces.text());
}

}  // namespace sluice
