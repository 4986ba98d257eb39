#include "apps/finetune/model/json_edit.h"

#include <algorithm>
#include <optional>

namespace sluice {
namespace {

struct Range {
  size_t begin = 0;
  size_t end = 0;
};

// Walks over JSON that is known to be well-formed.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // Of the value at `path` in the object that starts here.
  std::optional<Range> find(std::span<const std::string_view> path) {
    std::optional<Range> found;
    step();  // over the brace
    while (peek() == '"') {
      const std::string_view key = string();
      step();  // over the colon
      if (key == path[0] && path.size() == 1) {
        const size_t begin = position();
        skip_value();
        found = {begin, at_};  // of a key that stands there twice, the last one counts
      } else if (key == path[0] && peek() == '{') {
        const std::optional<Range> inner = find(path.subspan(1));
        if (inner) found = inner;
      } else {
        skip_value();
      }
      if (peek() == ',') step();
    }
    if (at_ < text_.size()) step();
    return found;
  }

 private:
  size_t position() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_;
  }
  char peek() { return position() < text_.size() ? text_[at_] : '\0'; }
  void step() { at_ = position() + 1; }

  // The text between the quotes, as it stands there.
  std::string_view string() {
    const size_t begin = position() + 1;
    for (at_ = begin; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\' ? 1 : 0;
    const size_t end = std::min(at_, text_.size());
    at_ = std::min(end + 1, text_.size());
    return text_.substr(begin, end - begin);
  }

  void skip_value() {
    int depth = 0;
    do {
      const char first = peek();
      if (first == '"') {
        string();
      } else if (first == '{' || first == '[') {
        ++depth;
        step();
      } else if (first == '}' || first == ']') {
        --depth;
        step();
      } else if (first == ',' || first == ':') {
        step();
      } else {
        at_ = std::min(text_.find_first_of(",:]} \t\r\n", at_), text_.size());
      }
    } while (depth > 0 && at_ < text_.size());
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string with_json_value(std::string text, std::span<const std::string_view> path,
                            std::string_view value) {
  const std::optional<Range> found = Scanner(text).find(path);
  if (found) text.replace(found->begin, found->end - found->begin, value);
  return text;
}

}  // namespace sluice
