#include "apps/finetune/data/tokenizer_json.h"

#include <cerrno>
#include <fstream>

#include "apps/finetune/data/json_fields.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr size_t kDepthMost = 64;  // real files: 6

AddedToken added_token(const json& entry) {
  const char* const where = "an entry of added_tokens";
  AddedToken token;
  token.content = string_field(entry, "content", where);
  const json& id = field(entry, "id", where);
  if (!id.is_number_unsigned())
    throw Error(ErrorKind::data, "the added token \"" + token.content + "\" has no usable id: " + id.dump());
  token.id = static_cast<int64_t>(std::min<uint64_t>(id.get<uint64_t>(), INT64_MAX));
  token.special = bool_field(entry, "special", where, false);
  token.lstrip = bool_field(entry, "lstrip", where, false);
  token.rstrip = bool_field(entry, "rstrip", where, false);
  token.single_word = bool_field(entry, "single_word", where, false);
  token.normalized = bool_field(entry, "normalized", where, !token.special);
  return token;
}

class Handler final : public nlohmann::json_sax<json> {
 public:
  explicit Handler(TokenizerJson& out) : out_(out) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return number(v, v); }
  bool number_unsigned(number_unsigned_t v) override {
    return number(static_cast<int64_t>(std::min<uint64_t>(v, INT64_MAX)), v);
  }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }
  bool binary(binary_t&) override { return false; }

  bool string(string_t& v) override {
    if (mode_ == Mode::merges) return merge_line(v);
    if (mode_ == Mode::merge_pair) return merge_part(v);
    return value(std::move(v));
  }
  bool key(string_t& v) override {
    key_ = std::move(v);
    if (mode_ == Mode::rest) keys_.back() = key_;
    return true;
  }

  bool start_object(size_t) override {
    if (mode_ == Mode::skip) return ++skip_depth_ > 0;
    if (mode_ != Mode::rest) wrong("an object");
    if (at("vocab")) {
      mode_ = Mode::vocabulary;
      out_.has_vocabulary = true;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override {
    if (mode_ == Mode::skip) return close_skipped();
    if (mode_ == Mode::vocabulary) {
      mode_ = Mode::rest;
      return true;
    }
    close();
    if (stack_.size() == 2 && keys_[0] == "added_tokens" && stack_.back()->is_array()) {
      out_.added_tokens.push_back(added_token(stack_.back()->back()));
      stack_.back()->erase(stack_.back()->size() - 1);
    }
    return true;
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::skip) return ++skip_depth_ > 0;
    if (mode_ == Mode::merges) {
      mode_ = Mode::merge_pair;
      parts_ = 0;
      return true;
    }
    if (mode_ != Mode::rest) wrong("an array");
    if (at("merges")) {
      mode_ = Mode::merges;
      return true;
    }
    if (at("vocab")) {  // Unigram's; the kind of model is refused later, by name
      mode_ = Mode::skip;
      skip_depth_ = 1;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::skip) return close_skipped();
    if (mode_ == Mode::merge_pair) {
      if (parts_ != 2) bad_merge("a list of " + std::to_string(parts_) + " tokens");
      add_merge(left_, right_);
      mode_ = Mode::merges;
      return true;
    }
    if (mode_ == Mode::merges) {
      mode_ = Mode::rest;
      return true;
    }
    return close();
  }

  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    throw Error(ErrorKind::data,
                "not readable as JSON at byte " + std::to_string(position) + ": " + error.what());
  }

 private:
  enum class Mode { rest, vocabulary, merges, merge_pair, skip };

  // Whether the value that starts here is model.<name>.
  bool at(const char* name) const {
    return stack_.size() == 2 && keys_[0] == "model" && keys_[1] == name && stack_[1]->is_object();
  }

  [[noreturn]] void wrong(const std::string& what) const {
    throw Error(ErrorKind::data, mode_ == Mode::vocabulary ? "the id of token \"" + key_ + "\" is " + what
                                                           : "model.merges holds " + what);
  }
  [[noreturn]] void bad_merge(const std::string& what) const {
    throw Error(ErrorKind::data, "merge " + std::to_string(out_.merges.pairs.size()) + " is " + what +
                                     ", not a pair of tokens");
  }

  template <class Value>
  bool number(int64_t clamped, Value exact) {
    if (mode_ != Mode::vocabulary) return value(exact);
    out_.vocabulary.add(key_, clamped);
    return true;
  }

  bool value(json v) {
    if (mode_ == Mode::skip) return true;
    if (mode_ != Mode::rest) wrong(v.dump());
    place(std::move(v));
    return true;
  }

  json* place(json v) {
    if (stack_.empty()) return &(out_.rest = std::move(v));
    if (stack_.back()->is_array()) return &stack_.back()->emplace_back(std::move(v));
    return &((*stack_.back())[key_] = std::move(v));
  }

  bool open(json container) {
    if (stack_.size() >= kDepthMost) throw Error(ErrorKind::data, "nested more than 64 levels deep");
    stack_.push_back(place(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }
  bool close_skipped() {
    if (--skip_depth_ == 0) mode_ = Mode::rest;
    return true;
  }

  bool merge_line(const std::string& line) {
    if (line.starts_with("#version")) return true;
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
      bad_merge("\"" + line + "\"");
    add_merge(line.substr(0, space), line.substr(space + 1));
    return true;
  }
  bool merge_part(std::string& part) {
    (++parts_ == 1 ? left_ : right_) = std::move(part);
    return true;
  }
  void add_merge(const std::string& left, const std::string& right) {
    MergeList& merges = out_.merges;
    const auto begin = static_cast<uint32_t>(merges.arena.size());
    const auto middle = static_cast<uint32_t>(begin + left.size());
    merges.arena += left;
    merges.arena += right;
    if (merges.arena.size() > UINT32_MAX) throw Error(ErrorKind::data, "the merges are over 4 GB");
    merges.pairs.push_back({begin, middle, static_cast<uint32_t>(merges.arena.size())});
  }

  TokenizerJson& out_;
  Mode mode_ = Mode::rest;
  std::vector<json*> stack_;       // open containers of `rest`
  std::vector<std::string> keys_;  // the key reached in each of them
  std::string key_;
  std::string left_, right_;  // of the merge being read
  size_t parts_ = 0;
  size_t skip_depth_ = 0;
};

}  // namespace

TokenizerJson read_tokenizer_json(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(ErrorKind::data, path + ": cannot be opened: " + errno_text(errno) +
                                     ". A model folder needs its tokenizer.json");
  TokenizerJson result;
  Handler handler(result);
  json::sax_parse(file, &handler);
  if (file.bad()) throw Error(ErrorKind::data, path + ": cannot be read: " + errno_text(errno));
  if (!result.rest.is_object()) throw Error(ErrorKind::data, path + ": not a JSON object");
  return result;
}

}  // namespace sluice
