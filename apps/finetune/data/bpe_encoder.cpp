#include "apps/finetune/data/bpe_encoder.h"

#include <algorithm>
#include <functional>

#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

// Up to here a scan for the best merge beats a heap: one cache line of ranks at a time, no pushes.
constexpr size_t kScanMost = 64;

}  // namespace

void BpeEncoder::encode(std::string_view word, TokenList& out) {
  if (word.empty()) return;
  SLUICE_CHECK(word.size() < INT32_MAX, "a text over 2 GB must be cut before it is tokenised");
  const bool cut = word.size() > WordCache::kWordMost && model_->options().alphabet == Alphabet::characters &&
                   !model_->options().ignore_merges;
  if (!cut) return encode_segment(word, out);
  // SentencePiece-style vocabularies take a whole text as one word. It falls apart where no merge can reach
  // across.
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = segment_end(word, begin);
    encode_segment(word.substr(begin, end - begin), out);
    begin = end;
  }
}

// The first place behind `begin` that no merge crosses. Unknown characters are kept with both neighbours,
// since they may fuse, and byte fallbacks come from a table of their own.
size_t BpeEncoder::segment_end(std::string_view word, size_t begin) const {
  size_t at = begin;
  size_t left_begin = begin;
  char32_t left = utf8::next(word, at);
  while (at < word.size()) {
    const size_t right_begin = at;
    const char32_t right = utf8::next(word, at);
    if (!model_->may_join(left, right) &&
        model_->character_symbol(word.substr(left_begin, right_begin - left_begin)) >= 0 &&
        model_->character_symbol(word.substr(right_begin, at - right_begin)) >= 0)
      return right_begin;
    left = right;
    left_begin = right_begin;
  }
  return word.size();
}

void BpeEncoder::encode_segment(std::string_view word, TokenList& out) {
  if (word.size() > WordCache::kWordMost) return encode_uncached(word, out);
  WordCache::Entry& entry = cache_.place(word);
  if (WordCache::holds(entry, word)) {
    out.ids.insert(out.ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    out.lengths.insert(out.lengths.end(), entry.lengths.begin(), entry.lengths.begin() + entry.count);
    return;
  }
  const size_t before = out.ids.size();
  encode_uncached(word, out);
  WordCache::put(entry, word, out.ids.data() + before, out.lengths.data() + before, out.ids.size() - before);
}

void BpeEncoder::encode_uncached(std::string_view word, TokenList& out) {
  if (model_->options().ignore_merges) {
    if (const int32_t id = model_->whole(word, scratch_); id >= 0) {
      out.ids.push_back(id);
      out.lengths.push_back(static_cast<uint32_t>(word.size()));
      return;
    }
  }
  find_symbols(word);
  if (symbols_.size() <= kScanMost) {
    merge_by_scan();
  } else {
    merge_by_heap();
  }
  for (const Symbol& symbol : symbols_) {
    if (symbol.length == 0) continue;
    out.ids.push_back(symbol.id);
    out.lengths.push_back(symbol.length);
  }
}

void BpeEncoder::add_symbol(int32_t id, size_t length) {
  const auto at = static_cast<int32_t>(symbols_.size());
  symbols_.push_back({id, static_cast<uint32_t>(length), at - 1, at + 1});
}

void BpeEncoder::find_symbols(std::string_view word) {
  symbols_.clear();
  if (model_->options().alphabet == Alphabet::bytes) {
    for (const char byte : word) add_symbol(model_->byte_symbol(static_cast<uint8_t>(byte)), 1);
  } else {
    find_characters(word);
  }
  if (!symbols_.empty()) symbols_.back().next = -1;
}

// As Hugging Face's merge_word does it, down to its order: byte fallbacks overtake an unknown token that
// still waits for more to fuse with, and lengths add up without the characters that vanish.
void BpeEncoder::find_characters(std::string_view word) {
  const BpeOptions& options = model_->options();
  size_t waiting_length = 0;  // of the unknown token not yet added
  const auto flush = [&] {
    if (waiting_length > 0) add_symbol(model_->unknown(), waiting_length);
    waiting_length = 0;
  };
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, utf8::length(word[at]));
    at += character.size();
    if (const int32_t id = model_->character_symbol(character); id >= 0) {
      flush();
      add_symbol(id, character.size());
      continue;
    }
    const auto known = [&](char byte) { return model_->fallback(static_cast<uint8_t>(byte)) >= 0; };
    if (options.byte_fallback && std::all_of(character.begin(), character.end(), known)) {
      for (const char byte : character) add_symbol(model_->fallback(static_cast<uint8_t>(byte)), 1);
      continue;
    }
    if (!options.has_unknown) continue;
    if (!options.fuse_unknown) flush();
    waiting_length += character.size();
  }
  flush();
}

void BpeEncoder::merge_by_scan() {
  const size_t count = symbols_.size();
  merges_.resize(count);
  const auto look = [&](int32_t at) {
    const Symbol& symbol = symbols_[static_cast<size_t>(at)];
    merges_[static_cast<size_t>(at)] =
        symbol.next < 0 ? BpeModel::Merge{BpeModel::kNoMerge, -1}
                        : model_->merge(symbol.id, symbols_[static_cast<size_t>(symbol.next)].id);
  };
  for (size_t i = 0; i < count; ++i) look(static_cast<int32_t>(i));
  while (true) {
    size_t best = count;
    uint32_t rank = BpeModel::kNoMerge;
    for (size_t i = 0; i < count; ++i) {
      if (merges_[i].rank < rank) {
        rank = merges_[i].rank;
        best = i;
      }
    }
    if (best == count) return;
    Symbol& left = symbols_[best];
    const auto right_at = static_cast<size_t>(left.next);
    Symbol& right = symbols_[right_at];
    left.id = merges_[best].id;
    left.length += right.length;
    left.next = right.next;
    right.length = 0;
    merges_[right_at].rank = BpeModel::kNoMerge;
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(best);
    look(static_cast<int32_t>(best));
    if (left.previous >= 0) look(left.previous);
  }
}

// Puts the merge of the symbol at `position` with its right neighbour onto the heap.
void BpeEncoder::offer(int32_t position) {
  const Symbol& symbol = symbols_[static_cast<size_t>(position)];
  if (symbol.next < 0) return;
  const BpeModel::Merge merge = model_->merge(symbol.id, symbols_[static_cast<size_t>(symbol.next)].id);
  if (merge.rank == BpeModel::kNoMerge) return;
  heap_.push_back(uint64_t{merge.rank} << 32 | static_cast<uint32_t>(position));
}

void BpeEncoder::merge_by_heap() {
  heap_.clear();
  for (size_t i = 0; i < symbols_.size(); ++i) offer(static_cast<int32_t>(i));
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  const auto offer_and_sift = [&](int32_t position) {
    const size_t before = heap_.size();
    offer(position);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    const auto position = static_cast<int32_t>(top & 0xffffffff);
    Symbol& left = symbols_[static_cast<size_t>(position)];
    if (left.length == 0 || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    // An entry is stale when either symbol has grown since: then the pair has another rank or none.
    const BpeModel::Merge merge = model_->merge(left.id, right.id);
    if (merge.rank != top >> 32) continue;
    left.id = merge.id;
    left.length += right.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = position;
    if (left.previous >= 0) offer_and_sift(left.previous);
    offer_and_sift(position);
  }
}

}  // namespace sluice
