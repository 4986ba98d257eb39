#include "apps/finetune/data/post_processor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/finetune/data/json_fields.h"
#include "apps/finetune/data/unicode_classes.h"
#include "apps/finetune/data/utf8.h"
#include "apps/finetune/data/vocabulary.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr char32_t kByteLevelSpace = 0x120;  // what a space is in byte_alphabet.h

bool is_space(char32_t c) {
  return c == kByteLevelSpace || is_white_space(c);
}

uint32_t leading_spaces(std::string_view text) {
  uint32_t count = 0;
  for (size_t at = 0; at < text.size() && is_space(utf8::next(text, at));) ++count;
  return count;
}

uint32_t trailing_spaces(std::string_view text) {
  uint32_t count = 0;
  for (size_t at = text.size(); at > 0 && is_space(utf8::previous(text, at));) ++count;
  return count;
}

}  // namespace

PostProcessor::PostProcessor(const nlohmann::json& post_processor) {
  if (!post_processor.is_null()) add(post_processor);
  for (const Step& step : steps_) {
    prefix_.insert(prefix_.begin(), step.before.begin(), step.before.end());
    suffix_.insert(suffix_.end(), step.behind.begin(), step.behind.end());
  }
}

void PostProcessor::add(const nlohmann::json& part) {
  const std::string type = string_field(part, "type", "post_processor");
  if (type == "Sequence") {
    for (const nlohmann::json& inner : array_field(part, "processors", "post_processor Sequence")) add(inner);
  } else if (type == "ByteLevel") {
    if (!bool_field(part, "trim_offsets", "post_processor ByteLevel", true)) return;
    Step step{Step::Kind::trim,
              bool_field(part, "add_prefix_space", "post_processor ByteLevel", true),
              {},
              {},
              {},
              {}};
    steps_.push_back(std::move(step));
  } else if (type == "TemplateProcessing") {
    add_template(part);
  } else {
    throw Error(ErrorKind::data, "the post_processor " + type + " is not supported");
  }
}

void PostProcessor::add_template(const nlohmann::json& part) {
  const char* const where = "post_processor TemplateProcessing";
  Step step{Step::Kind::surround, false, {}, {}, {}, {}};
  bool seen = false;
  for (const nlohmann::json& item : array_field(part, "single", where)) {
    if (item.is_object() && item.contains("Sequence")) {
      if (seen) throw Error(ErrorKind::data, std::string(where) + ": the text stands twice in \"single\"");
      seen = true;
      continue;
    }
    const std::string name = string_field(field(item, "SpecialToken", where), "id", where);
    const nlohmann::json& token = field(field(part, "special_tokens", where), name.c_str(), where);
    for (const nlohmann::json& id : array_field(token, "ids", where)) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= Vocabulary::kIdLimit)
        throw Error(ErrorKind::data, std::string(where) + ": \"" + name + "\" has the id " + id.dump());
      (seen ? step.behind : step.before).push_back(id.get<int32_t>());
      (seen ? step.behind_texts : step.before_texts).push_back(name);
    }
  }
  if (!seen) throw Error(ErrorKind::data, std::string(where) + ": the text is missing in \"single\"");
  steps_.push_back(std::move(step));
}

void PostProcessor::apply(EncodedTokens& tokens, SpecialTokens special) const {
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::trim) {
      trim(tokens, step.add_prefix_space);
    } else if (special == SpecialTokens::add) {
      surround(tokens, step);
    }
  }
}

// Takes the spaces out of the offsets, as process_offsets in Hugging Face's byte_level.rs does it.
void PostProcessor::trim(EncodedTokens& tokens, bool add_prefix_space) {
  for (size_t i = 0; i < tokens.spans.size(); ++i) {
    CodePointSpan& span = tokens.spans[i];
    uint32_t leading = leading_spaces(tokens.texts[i]);
    const uint32_t trailing = trailing_spaces(tokens.texts[i]);
    if (leading > 0) {
      // One space at the start is our own; more were not put there by us.
      if (add_prefix_space && leading == 1 && (i == 0 || span.begin == 0)) leading = 0;
      span.begin = std::min(span.begin + leading, span.end);
    }
    if (trailing > 0 && span.end >= trailing) span.end = std::max(span.end - trailing, span.begin);
  }
}

void PostProcessor::surround(EncodedTokens& tokens, const Step& step) {
  const bool offsets = !tokens.spans.empty() || tokens.ids.empty();
  tokens.ids.insert(tokens.ids.begin(), step.before.begin(), step.before.end());
  tokens.ids.insert(tokens.ids.end(), step.behind.begin(), step.behind.end());
  if (!offsets) return;
  tokens.spans.insert(tokens.spans.begin(), step.before.size(), CodePointSpan{});
  tokens.spans.insert(tokens.spans.end(), step.behind.size(), CodePointSpan{});
  tokens.texts.insert(tokens.texts.begin(), step.before_texts.begin(), step.before_texts.end());
  tokens.texts.insert(tokens.texts.end(), step.behind_texts.begin(), step.behind_texts.end());
}

}  // namespace sluice
