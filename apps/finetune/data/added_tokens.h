#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "apps/finetune/data/normalizer.h"
#include "apps/finetune/data/piece_text.h"
#include "apps/finetune/data/vocabulary.h"

namespace sluice {

// One entry of `added_tokens` in a tokenizer.json.
struct AddedToken {
  std::string content;
  int64_t id = -1;
  bool special = false;
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool single_word = false;  // only where no letter or digit touches it
  bool normalized = false;   // looked for in normalised text, in its own normalised form
  std::string text;  // what decoding sees: the content, normalised where that is wanted. Set by AddedTokens
};

// Tokens that are found in the text before the model sees it. Immutable, safe from any thread.
class AddedTokens {
 public:
  // Ids follow Hugging Face: that of the vocabulary where the content stands there, else the next free one in
  // file order. Throws Error(data) where that is not the id in the file: such a file is damaged, and
  // embeddings would be mixed up.
  AddedTokens(const std::vector<AddedToken>& tokens, const Vocabulary& vocabulary,
              const Normalizers& normalizers);

  // Cut out of the raw text, or, after normalising, those that want normalised text.
  void extract_raw(PieceText& text) const { extract(text, raw_); }
  void extract_normalized(PieceText& text) const { extract(text, normalized_); }

  // nullptr when the id is not an added token's.
  const AddedToken* find(int32_t id) const;
  // -1 when no added token has this content.
  int32_t find(std::string_view content) const;
  // Decoding tells special tokens by their text, so that one changed by normalising is never skipped.
  bool is_special_text(std::string_view text) const;
  // One above the greatest id; 0 when there are none.
  int32_t id_end() const { return id_end_; }

 private:
  // All contents as a tree of bytes; finds the longest at a place.
  class Trie {
   public:
    void add(std::string_view content, int32_t id);
    struct Found {
      int32_t id = -1;
      size_t length = 0;
    };
    // The leftmost, there the longest, at or after `from`, which is moved to where it starts.
    Found find(std::string_view text, size_t& from) const;
    bool empty() const { return nodes_.size() == 1; }

   private:
    struct Node {
      int32_t id = -1;
      std::vector<std::pair<char, uint32_t>> children;
    };
    uint32_t child(uint32_t node, char byte) const;
    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::vector<uint32_t> first_ = std::vector<uint32_t>(256, 0);  // the root's children by byte, 0 for none
  };
  void extract(PieceText& text, const Trie& trie) const;
  template <class Put>
  void find_all(std::string_view view, const Trie& trie, const Put& put) const;

  std::unordered_map<int32_t, AddedToken> by_id_;
  std::unordered_map<std::string, int32_t> by_content_;
  std::unordered_map<std::string, bool> special_;
  Trie raw_;
  Trie normalized_;
  int32_t id_end_ = 0;
};

}  // namespace sluice
