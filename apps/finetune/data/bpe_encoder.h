#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "apps/finetune/data/bpe_model.h"
#include "apps/finetune/data/word_cache.h"

namespace sluice {

// Ids, and how many bytes of the word each covers (in the model's alphabet; what Hugging Face calls
// normalised offsets).
struct TokenList {
  std::vector<int32_t> ids;
  std::vector<uint32_t> lengths;
  void clear() {
    ids.clear();
    lengths.clear();
  }
};

// Encodes words with a shared model. One thread at a time: it has a cache of words and scratch memory of its
// own, and makes no allocation once they have grown. Short words merge by scanning, long ones through a heap:
// n log n in the word's length.
class BpeEncoder {
 public:
  explicit BpeEncoder(std::shared_ptr<const BpeModel> model) : model_(std::move(model)) {}

  // Appends the tokens of `word`, well-formed UTF-8. (With alphabet bytes any bytes will do.)
  void encode(std::string_view word, TokenList& out);

  const BpeModel& model() const { return *model_; }

 private:
  struct Symbol {
    int32_t id;
    uint32_t length;  // bytes; 0 when merged into its left neighbour
    int32_t previous;
    int32_t next;
  };
  void encode_segment(std::string_view word, TokenList& out);
  void encode_uncached(std::string_view word, TokenList& out);
  size_t segment_end(std::string_view word, size_t begin) const;
  void find_symbols(std::string_view word);
  void find_characters(std::string_view word);
  void add_symbol(int32_t id, size_t length);
  void merge_by_scan();
  void merge_by_heap();
  void offer(int32_t position);

  std::shared_ptr<const BpeModel> model_;
  WordCache cache_;
  std::vector<Symbol> symbols_;
  std::vector<BpeModel::Merge> merges_;  // of each symbol with its right neighbour, for the scan
  std::vector<uint64_t> heap_;           // rank << 32 | position, least first
  std::string scratch_;
};

}  // namespace sluice
