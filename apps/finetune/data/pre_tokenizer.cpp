#include "apps/finetune/data/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/finetune/data/byte_alphabet.h"
#include "apps/finetune/data/json_fields.h"
#include "apps/finetune/data/metaspace.h"
#include "apps/finetune/data/text_pattern.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

// GPT-2's (OpenAI, encoder.py), which ByteLevel has built in.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Split final : public PreTokenizer {
 public:
  Split(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(PieceText& text) const override { split_at(text, pattern_, behavior_, invert_); }
  std::unique_ptr<PreTokenizer> clone() const override { return std::make_unique<Split>(*this); }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, ByteMapping mapping)
      : add_prefix_space_(add_prefix_space), mapping_(mapping) {
    if (use_regex) pattern_.emplace(kGpt2Pattern);
  }
  void apply(PieceText& text) const override {
    if (add_prefix_space_) {
      text.rewrite([](std::string_view view, uint32_t) { return !view.empty() && view[0] != ' '; },
                   [](std::string_view view, PieceText::Writer& writer) {
                     writer.put(" ", 0);
                     writer.keep(0, view.size());
                   });
    }
    if (pattern_) split_at(text, *pattern_, SplitBehavior::isolated);
    if (mapping_ == ByteMapping::in_text) map_bytes(text);
  }
  std::unique_ptr<PreTokenizer> clone() const override { return std::make_unique<ByteLevel>(*this); }

 private:
  static void map_bytes(PieceText& text) {
    text.rewrite([](std::string_view, uint32_t) { return true; },
                 [](std::string_view view, PieceText::Writer& writer) {
                   std::string character;
                   for (size_t at = 0; at < view.size(); ++at) {
                     character.clear();
                     byte_alphabet::append(character, view.substr(at, 1));
                     writer.put(character, at);
                   }
                 });
  }

  bool add_prefix_space_;
  ByteMapping mapping_;
  std::optional<Regex> pattern_;
};

// The parts of nested Sequences, in order.
void flatten(const nlohmann::json& part, std::vector<const nlohmann::json*>& out) {
  if (part.is_null()) return;
  if (string_field(part, "type", "pre_tokenizer") != "Sequence") {
    out.push_back(&part);
    return;
  }
  for (const nlohmann::json& inner : array_field(part, "pretokenizers", "pre_tokenizer Sequence"))
    flatten(inner, out);
}

std::unique_ptr<PreTokenizer> make(const nlohmann::json& part, ByteMapping mapping) {
  const std::string type = string_field(part, "type", "pre_tokenizer");
  const std::string where = "pre_tokenizer " + type;
  if (type == "Split") {
    return std::make_unique<Split>(pattern_from_json(field(part, "pattern", where)),
                                   split_behavior_from_json(field(part, "behavior", where)),
                                   bool_field(part, "invert", where, false));
  }
  if (type == "ByteLevel")
    return std::make_unique<ByteLevel>(bool_field(part, "add_prefix_space", where, true),
                                       bool_field(part, "use_regex", where, true), mapping);
  if (type == "Digits") {
    const bool each = bool_field(part, "individual_digits", where, false);
    return std::make_unique<Split>(Regex("\\p{hf_numeric}"),
                                   each ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
  }
  if (type == "Punctuation") {
    const auto behavior = part.find("behavior");
    return std::make_unique<Split>(
        Regex("\\p{hf_punctuation}"),
        behavior == part.end() ? SplitBehavior::isolated : split_behavior_from_json(*behavior), false);
  }
  if (type == "Metaspace") return make_metaspace_pre_tokenizer(metaspace_from_json(part, where));
  throw Error(ErrorKind::data, "the pre_tokenizer " + type + " is not supported");
}

}  // namespace

PreTokenizers pre_tokenizers_from_json(const nlohmann::json& pre_tokenizer, ByteMapping mapping) {
  std::vector<const nlohmann::json*> parts;
  flatten(pre_tokenizer, parts);
  PreTokenizers result;
  for (const nlohmann::json* part : parts) result.push_back(make(*part, mapping));
  return result;
}

bool ends_in_byte_level(const nlohmann::json& pre_tokenizer) {
  std::vector<const nlohmann::json*> parts;
  flatten(pre_tokenizer, parts);
  size_t count = 0;
  for (const nlohmann::json* part : parts)
    count += string_field(*part, "type", "pre_tokenizer") == "ByteLevel";
  return count == 1 && string_field(*parts.back(), "type", "pre_tokenizer") == "ByteLevel";
}

}  // namespace sluice
