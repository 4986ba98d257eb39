#include "apps/finetune/data/metaspace.h"

#include <nlohmann/json.hpp>

#include "apps/finetune/data/json_fields.h"
#include "apps/finetune/data/text_pattern.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(Metaspace options)
      : options_(std::move(options)),
        space_(Regex::literal(" ")),
        mark_(Regex::literal(options_.replacement)) {}

  void apply(PieceText& text) const override {
    replace_all(text, space_, options_.replacement);
    text.rewrite([this](std::string_view view, uint32_t begin) { return wants_prefix(view, begin); },
                 [this](std::string_view view, PieceText::Writer& writer) {
                   writer.put(options_.replacement, 0);
                   writer.keep(0, view.size());
                 });
    if (options_.split) split_at(text, mark_, SplitBehavior::merged_with_next);
  }
  std::unique_ptr<PreTokenizer> clone() const override {
    return std::make_unique<MetaspacePreTokenizer>(*this);
  }

 private:
  bool wants_prefix(std::string_view view, uint32_t original_begin) const {
    if (view.starts_with(options_.replacement)) return false;
    switch (options_.prepend) {
      case Metaspace::Prepend::always:
        return true;
      case Metaspace::Prepend::first:
        return original_begin == 0;
      case Metaspace::Prepend::never:
        return false;
    }
    return false;
  }

  Metaspace options_;
  Regex space_;
  Regex mark_;
};

}  // namespace

Metaspace metaspace_from_json(const nlohmann::json& part, const std::string& where) {
  Metaspace result;
  result.replacement = string_field(part, "replacement", where);
  if (result.replacement.empty() || utf8::length(result.replacement[0]) != result.replacement.size())
    throw Error(ErrorKind::data, where + ": \"replacement\" is not one character");
  // Files from before prepend_scheme have add_prefix_space.
  const std::string scheme = part.contains("prepend_scheme") ? string_field(part, "prepend_scheme", where)
                             : bool_field(part, "add_prefix_space", where, true) ? "always"
                                                                                 : "never";
  if (scheme == "first") {
    result.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    result.prepend = Metaspace::Prepend::never;
  } else if (scheme != "always") {
    throw Error(ErrorKind::data, where + ": the prepend_scheme " + scheme + " is not supported");
  }
  result.split = bool_field(part, "split", where, true);
  return result;
}

std::unique_ptr<PreTokenizer> make_metaspace_pre_tokenizer(Metaspace options) {
  return std::make_unique<MetaspacePreTokenizer>(std::move(options));
}

}  // namespace sluice
