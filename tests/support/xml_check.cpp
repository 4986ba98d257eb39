#include "tests/support/xml_check.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

namespace sluice::test {
namespace {

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}

class Reader {
 public:
  Reader(std::string_view text, std::vector<XmlElement>* elements) : text_(text), elements_(elements) {}

  std::string fault() {
    while (fault_.empty() && at_ < text_.size()) {
      if (text_[at_] == '<') {
        tag();
      } else {
        characters();
      }
    }
    if (fault_.empty() && !open_.empty()) fail(open_.back() + " is not closed");
    if (fault_.empty() && root_count_ != 1) fail("there must be one root");
    return fault_;
  }

 private:
  void fail(const std::string& what) {
    if (fault_.empty()) fault_ = what + " at offset " + std::to_string(at_);
  }

  std::string name() {
    const size_t begin = at_;
    if (at_ < text_.size() && is_name_start(text_[at_])) {
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                    std::string_view("_-.:").find(text_[at_]) != std::string_view::npos))
        ++at_;
    }
    if (at_ == begin) fail("a name is missing");
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  void tag() {
    if (take("</")) {
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed) return fail(closed + " closes nothing");
      open_.pop_back();
      skip_blanks();
      if (!take(">")) fail("'>' is missing");
      return;
    }
    ++at_;
    if (open_.empty()) ++root_count_;
    XmlElement element{.name = name(), .attributes = {}, .text = {}};
    const size_t begin = at_;
    std::set<std::string> seen;
    while (fault_.empty() && !text_.substr(at_).starts_with(">") && !text_.substr(at_).starts_with("/>")) {
      const size_t before = at_;
      skip_blanks();
      if (at_ == before) return fail("a blank is missing");
      if (at_ < text_.size() && is_name_start(text_[at_])) attribute(seen);
    }
    element.attributes = text_.substr(begin, at_ - begin);
    if (!take("/>")) {
      open_.push_back(element.name);
      take(">");
    }
    if (elements_ != nullptr) elements_->push_back(element);
  }

  void attribute(std::set<std::string>& seen) {
    if (!seen.insert(name()).second) return fail("an attribute is there twice");
    if (!take("=\"")) return fail("'=\"' is missing");
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '<') return fail("'<' in an attribute");
      character();
    }
    if (!take("\"")) fail("a value does not end");
  }

  void characters() {
    const size_t begin = at_;
    while (fault_.empty() && at_ < text_.size() && text_[at_] != '<') character();
    const std::string_view read = text_.substr(begin, at_ - begin);
    const bool blank =
        std::all_of(read.begin(), read.end(), [](unsigned char c) { return std::isspace(c) != 0; });
    if (open_.empty() && !blank) fail("text outside of the root");
    if (elements_ != nullptr && !elements_->empty() && elements_->back().text.empty())
      elements_->back().text = read;
  }

  void character() {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '&') {
      constexpr std::array kEntities = {"&amp;", "&lt;", "&gt;", "&quot;", "&apos;"};
      if (std::none_of(kEntities.begin(), kEntities.end(), [&](const char* entity) { return take(entity); }))
        fail("'&' begins no entity");
      return;
    }
    if (c < ' ' && c != '\n' && c != '\t' && c != '\r') return fail("a control character");
    ++at_;
  }

  const std::string_view text_;
  std::vector<XmlElement>* elements_;
  size_t at_ = 0;
  int root_count_ = 0;
  std::vector<std::string> open_;
  std::string fault_;
};

}  // namespace

std::string xml_fault(const std::string& document, std::vector<XmlElement>* elements) {
  return Reader(document, elements).fault();
}

}  // namespace sluice::test
