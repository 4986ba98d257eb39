#include "apps/finetune/data/added_tokens.h"

#include <algorithm>

#include "apps/finetune/data/unicode_classes.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

bool ends_with_word(std::string_view text) {
  size_t at = text.size();
  return at > 0 && is_word(utf8::previous(text, at));
}

bool starts_with_word(std::string_view text) {
  size_t at = 0;
  return !text.empty() && is_word(utf8::next(text, at));
}

size_t without_trailing_space(std::string_view text) {
  size_t end = text.size();
  for (size_t at = end; at > 0 && is_white_space(utf8::previous(text, at));) end = at;
  return end;
}

size_t leading_space(std::string_view text) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && is_white_space(utf8::next(text, at));) begin = at;
  return begin;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& vocabulary,
                         const Normalizers& normalizers) {
  const int64_t vocabulary_size = vocabulary.size();
  int64_t greatest = -1;
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    int64_t id = find(std::string_view(token.content));
    if (id < 0) id = vocabulary.find(token.content);
    if (id < 0) id = greatest >= vocabulary_size ? greatest + 1 : vocabulary_size;
    if (id != token.id || id >= Vocabulary::kIdLimit)
      throw Error(ErrorKind::data, "the added token \"" + token.content + "\" says id " +
                                       std::to_string(token.id) + ", but by the vocabulary it is " +
                                       std::to_string(id) +
                                       ". The tokenizer.json is damaged; get a new copy");
    greatest = std::max(greatest, id);
    const auto key = static_cast<int32_t>(id);
    by_id_[key] = token;
    by_content_[token.content] = key;
    if (token.special) special_[token.content] = true;
    id_end_ = std::max(id_end_, key + 1);
  }
  for (auto& [id, token] : by_id_) {
    token.text = token.normalized ? normalized(normalizers, token.content) : token.content;
    (token.normalized ? normalized_ : raw_).add(token.text, id);
  }
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

int32_t AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? -1 : found->second;
}

bool AddedTokens::is_special_text(std::string_view text) const {
  return special_.contains(std::string(text));
}

// Two contents that are normalised to the same: the lower id counts, so that the order of the map does not.
void AddedTokens::Trie::add(std::string_view content, int32_t id) {
  uint32_t node = 0;
  for (const char byte : content) {
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, next);
      if (node == 0) first_[static_cast<uint8_t>(byte)] = next;
    }
    node = next;
  }
  if (node != 0 && (nodes_[node].id < 0 || id < nodes_[node].id)) nodes_[node].id = id;
}

uint32_t AddedTokens::Trie::child(uint32_t node, char byte) const {
  for (const auto& [key, next] : nodes_[node].children) {
    if (key == byte) return next;
  }
  return 0;
}

AddedTokens::Trie::Found AddedTokens::Trie::find(std::string_view text, size_t& from) const {
  for (; from < text.size(); ++from) {
    uint32_t node = first_[static_cast<uint8_t>(text[from])];
    Found found;
    for (size_t at = from + 1; node != 0; ++at) {
      if (nodes_[node].id >= 0) found = {nodes_[node].id, at - from};
      if (at >= text.size()) break;
      node = child(node, text[at]);
    }
    if (found.id >= 0) return found;
  }
  return {};
}

// Hugging Face's find_matches (tokenizer/added_vocabulary.rs), in its order of steps.
template <class Put>
void AddedTokens::find_all(std::string_view view, const Trie& trie, const Put& put) const {
  size_t done = 0;
  size_t from = 0;
  while (true) {
    const Trie::Found found = trie.find(view, from);
    if (found.id < 0) break;
    size_t begin = from;
    size_t end = from + found.length;
    from = end;
    const AddedToken& token = by_id_.at(found.id);
    if (token.single_word && (ends_with_word(view.substr(0, begin)) || starts_with_word(view.substr(end))))
      continue;
    if (token.lstrip) begin = std::max(without_trailing_space(view.substr(0, begin)), done);
    if (token.rstrip) end += leading_space(view.substr(end));
    if (done < begin) put(done, begin, -1);
    put(begin, end, found.id);
    done = end;
  }
  if (done < view.size()) put(done, view.size(), -1);
}

void AddedTokens::extract(PieceText& text, const Trie& trie) const {
  if (trie.empty()) return;
  text.split([&](std::string_view view, const auto& put) { find_all(view, trie, put); });
}

}  // namespace sluice
