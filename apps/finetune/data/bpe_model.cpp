#include "apps/finetune/data/bpe_model.h"

#include <bit>
#include <cstdio>

#include "apps/finetune/data/byte_alphabet.h"
#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {
namespace {

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// The finaliser of MurmurHash3 (Appleby, public domain), shortened: keys are pairs of small numbers.
size_t mix(uint64_t key) {
  key *= 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(key ^ key >> 32);
}

std::string byte_token(uint8_t byte) {
  std::string text;
  utf8::append(text, byte_alphabet::character(byte));
  return text;
}

std::string quoted(std::string_view token) {
  return "\"" + std::string(token) + "\"";
}

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, const MergeList& merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  slots_.resize(std::bit_ceil(merges.pairs.size() * 3 / 2 + 16));
  uint32_t rank = 0;
  for (const MergeList::Pair& pair : merges.pairs) {
    const std::string_view arena = merges.arena;
    const std::string_view left = arena.substr(pair.begin, pair.middle - pair.begin);
    const std::string_view right = arena.substr(pair.middle, pair.end - pair.middle);
    const std::string_view joined = arena.substr(pair.begin, pair.end - pair.begin);
    for (const std::string_view token : {left, right, joined}) {
      if (vocabulary_.find(token) < 0)
        throw Error(ErrorKind::data, "merge " + std::to_string(rank) + " of " + quoted(left) + " and " +
                                         quoted(right) + " needs the token " + quoted(token) +
                                         ", which is not in the vocabulary");
    }
    add_merge(vocabulary_.find(left), vocabulary_.find(right), rank++, vocabulary_.find(joined));
    if (options_.alphabet == Alphabet::characters) add_join(left, right);
  }
  for (uint32_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    byte_symbols_[b] = vocabulary_.find(byte_token(byte));
    fallbacks_[b] = vocabulary_.find(name);
    if (b < 128) ascii_symbols_[b] = vocabulary_.find(std::string(1, static_cast<char>(byte)));
  }
  if (options_.has_unknown) unknown_ = vocabulary_.find(options_.unknown_token);
}

bool BpeModel::has_all_bytes(const Vocabulary& vocabulary) {
  for (uint32_t b = 0; b < 256; ++b) {
    if (vocabulary.find(byte_token(static_cast<uint8_t>(b))) < 0) return false;
  }
  return true;
}

// A pair listed twice takes the later rank, as in Hugging Face's reader.
void BpeModel::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const uint64_t key = key_of(left, right);
  const size_t mask = slots_.size() - 1;
  size_t at = mix(key) & mask;
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask;
  slots_[at] = {key, rank, id};
}

BpeModel::Merge BpeModel::merge(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  const size_t mask = slots_.size() - 1;
  size_t at = mix(key) & mask;
  while (slots_[at].key != key) {
    if (slots_[at].key == kEmpty) return {kNoMerge, -1};
    at = (at + 1) & mask;
  }
  return {slots_[at].rank, slots_[at].id};
}

void BpeModel::add_join(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) return;
  size_t end = left.size();
  size_t begin = 0;
  const uint64_t key = uint64_t{utf8::previous(left, end)} << 32 | utf8::next(right, begin);
  if (key >> 32 < 128 && (key & 0xffffffff) < 128) {
    ascii_joins_.set((key >> 32) * 128 + (key & 0xffffffff));
    return;
  }
  if ((join_count_ + 1) * 2 > joins_.size()) {
    const std::vector<uint64_t> old = std::move(joins_);
    joins_.assign(old.empty() ? 1024 : old.size() * 2, kEmpty);
    for (const uint64_t k : old) {
      if (k == kEmpty) continue;
      size_t at = mix(k) & (joins_.size() - 1);
      while (joins_[at] != kEmpty) at = (at + 1) & (joins_.size() - 1);
      joins_[at] = k;
    }
  }
  size_t at = mix(key) & (joins_.size() - 1);
  while (joins_[at] != kEmpty && joins_[at] != key) at = (at + 1) & (joins_.size() - 1);
  if (joins_[at] == kEmpty) ++join_count_;
  joins_[at] = key;
}

bool BpeModel::may_join(char32_t left, char32_t right) const {
  if (left < 128 && right < 128) return ascii_joins_[left * 128 + right];
  if (joins_.empty()) return false;
  const uint64_t key = uint64_t{left} << 32 | right;
  size_t at = mix(key) & (joins_.size() - 1);
  while (joins_[at] != kEmpty) {
    if (joins_[at] == key) return true;
    at = (at + 1) & (joins_.size() - 1);
  }
  return false;
}

int32_t BpeModel::character_symbol(std::string_view character) const {
  const auto first = static_cast<uint8_t>(character[0]);
  return first < 0x80 ? ascii_symbols_[first] : vocabulary_.find(character);
}

int32_t BpeModel::whole(std::string_view word, std::string& scratch) const {
  if (options_.alphabet == Alphabet::characters) return vocabulary_.find(word);
  scratch.clear();
  byte_alphabet::append(scratch, word);
  return vocabulary_.find(scratch);
}

int32_t BpeModel::unknown() const {
  if (unknown_ < 0)
    throw Error(ErrorKind::data,
                "the text holds a character that the vocabulary lacks, and so does its unk_token " +
                    quoted(options_.unknown_token) + ". The tokenizer.json is damaged");
  return unknown_;
}

}  // namespace sluice
