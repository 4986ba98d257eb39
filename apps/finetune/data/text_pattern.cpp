#include "apps/finetune/data/text_pattern.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Joins neighbouring parts, match or not, into pieces, as NormalizedString::split does in one fold.
template <class Put>
class Joiner {
 public:
  Joiner(SplitBehavior behavior, const Put& put) : behavior_(behavior), put_(put) {}

  void part(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::removed:
        if (!is_match) put_(begin, end, -1);
        return;
      case SplitBehavior::isolated:
        put_(begin, end, -1);
        return;
      case SplitBehavior::contiguous:
        return add(begin, end, is_match == previous_is_match_, is_match);
      case SplitBehavior::merged_with_previous:
        return add(begin, end, is_match && !previous_is_match_, is_match);
      case SplitBehavior::merged_with_next:  // looked at from the right: a match takes what follows, unless
                                             // that is a match
        return add(begin, end, previous_is_match_ && !is_match, is_match);
    }
  }
  void finish() {
    if (open_) put_(begin_, end_, -1);
    open_ = false;
  }

 private:
  void add(size_t begin, size_t end, bool joins, bool is_match) {
    if (!joins || !open_) {
      finish();
      begin_ = begin;
      open_ = true;
    }
    end_ = end;
    previous_is_match_ = is_match;
  }

  SplitBehavior behavior_;
  const Put& put_;
  bool previous_is_match_ = false;
  bool open_ = false;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace

Regex pattern_from_json(const nlohmann::json& pattern) {
  if (pattern.is_object() && pattern.size() == 1) {
    const auto entry = pattern.begin();
    if (entry.key() == "Regex" && entry->is_string()) return Regex(entry->get_ref<const std::string&>());
    if (entry.key() == "String" && entry->is_string())
      return Regex::literal(entry->get_ref<const std::string&>());
  }
  throw Error(ErrorKind::data, "a pattern is neither {\"Regex\": ...} nor {\"String\": ...}: " +
                                   pattern.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

SplitBehavior split_behavior_from_json(const nlohmann::json& behavior) {
  const std::string name = behavior.is_string() ? behavior.get<std::string>() : behavior.dump();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  throw Error(ErrorKind::data, "the split behaviour " + name + " is not supported");
}

void split_at(PieceText& text, const Regex& pattern, SplitBehavior behavior, bool invert) {
  text.split([&](std::string_view view, const auto& put) {
    Joiner joiner(behavior, put);
    size_t done = 0;
    pattern.for_each(view, [&](Regex::Match match) {
      if (done != match.begin) joiner.part(done, match.begin, invert);
      joiner.part(match.begin, match.end, !invert);
      done = match.end;
    });
    if (done != view.size()) joiner.part(done, view.size(), invert);
    joiner.finish();
  });
}

void replace_all(PieceText& text, const Regex& pattern, const std::string& content) {
  text.rewrite([&](std::string_view view, uint32_t) { return pattern.find(view, 0).has_value(); },
               [&](std::string_view view, PieceText::Writer& writer) {
                 size_t done = 0;
                 pattern.for_each(view, [&](Regex::Match match) {
                   writer.keep(done, match.begin);
                   // An empty match stands with its left neighbour, at the start with the first character.
                   writer.put(content, match.end > 0 ? match.end - 1 : 0);
                   done = match.end;
                 });
                 writer.keep(done, view.size());
               });
}

}  // namespace sluice
