#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/finetune/data/vocabulary.h"

namespace sluice {

// What the model's first symbols are.
enum class Alphabet {
  characters,  // the code points of the text
  bytes,       // its bytes, which stand in the vocabulary as characters of byte_alphabet.h
};

// Merges as a tokenizer.json lists them, best first; texts one after the other in one arena.
struct MergeList {
  std::string arena;
  struct Pair {
    uint32_t begin, middle, end;  // left token, right token
  };
  std::vector<Pair> pairs;
};

struct BpeOptions {
  Alphabet alphabet = Alphabet::characters;
  bool ignore_merges = false;  // a word that is a token is taken whole
  bool fuse_unknown = false;
  bool byte_fallback = false;  // unknown characters become <0xNN> tokens, where all of them exist
  bool has_unknown = false;    // without it, and without byte fallback, unknown characters vanish
  std::string unknown_token;
};

// The tables of byte-pair encoding. Immutable after construction: safe from any thread, shared by all
// encoders.
class BpeModel {
 public:
  // Throws Error(data) naming the token where a merge's left, right or joined token is not in the vocabulary.
  BpeModel(Vocabulary vocabulary, const MergeList& merges, BpeOptions options);

  struct Merge {
    uint32_t rank;  // kNoMerge where the pair does not merge
    int32_t id;
  };
  static constexpr uint32_t kNoMerge = UINT32_MAX;
  Merge merge(int32_t left, int32_t right) const;

  // False where no merge can ever join what ends in `left` with what begins in `right`: the text may be cut
  // there.
  bool may_join(char32_t left, char32_t right) const;

  // The token of one byte (alphabet bytes) or one character in UTF-8 (alphabet characters), -1 if there is
  // none.
  int32_t byte_symbol(uint8_t byte) const { return byte_symbols_[byte]; }
  int32_t character_symbol(std::string_view character) const;
  // The token <0xNN>, -1 if there is none.
  int32_t fallback(uint8_t byte) const { return fallbacks_[byte]; }
  // The whole word as one token, -1 if it is none.
  int32_t whole(std::string_view word, std::string& scratch) const;
  // Throws Error(data) if the file names an unknown token that its vocabulary lacks.
  int32_t unknown() const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }
  // Every byte has its token: byte-level encoding then loses nothing.
  static bool has_all_bytes(const Vocabulary& vocabulary);

 private:
  struct Slot {
    uint64_t key = kEmpty;  // left << 32 | right
    uint32_t rank = kNoMerge;
    int32_t id = -1;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t id);
  void add_join(std::string_view left, std::string_view right);

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<Slot> slots_;             // a power of two, at most two thirds full
  std::bitset<128 * 128> ascii_joins_;  // left * 128 + right: the pairs asked for most
  std::vector<uint64_t> joins_;         // open addressing; character pairs
  size_t join_count_ = 0;
  std::array<int32_t, 256> byte_symbols_;
  std::array<int32_t, 128> ascii_symbols_;
  std::array<int32_t, 256> fallbacks_;
  int32_t unknown_ = -1;
};

}  // namespace sluice
