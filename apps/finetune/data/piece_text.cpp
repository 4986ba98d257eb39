#include "apps/finetune/data/piece_text.h"

#include "apps/finetune/data/utf8.h"
#include "engine/base/error.h"

namespace sluice {

void PieceText::reset(std::string_view original) {
  SLUICE_CHECK(original.size() < INT32_MAX);
  text_ = original;
  pieces_.clear();
  origins_.clear();
  if (!original.empty()) pieces_.push_back({{0, static_cast<uint32_t>(original.size())}, -1});
}

ByteSpan PieceText::character_at(uint32_t at) const {
  uint32_t begin = at;
  while (utf8::is_continuation(text_[begin])) --begin;
  return {begin, begin + static_cast<uint32_t>(utf8::length(text_[begin]))};
}

ByteSpan PieceText::original(uint32_t begin, uint32_t end) const {
  return {origin(begin).begin, origin(end - 1).end};
}

void PieceText::begin_rewrite() {
  next_text_.clear();
  next_origins_.clear();
  next_pieces_.clear();
  next_text_.reserve(text_.size() + text_.size() / 2);
  next_origins_.reserve(text_.size() + text_.size() / 2);
}

void PieceText::end_rewrite() {
  owned_.swap(next_text_);
  text_ = owned_;
  SLUICE_CHECK(text_.size() < INT32_MAX, "a text over 2 GB must be cut before it is tokenised");
  origins_.swap(next_origins_);
  pieces_.swap(next_pieces_);
}

void PieceText::Writer::keep(size_t begin, size_t end) {
  owner_.next_text_.append(owner_.text_.substr(base_ + begin, end - begin));
  for (size_t at = base_ + begin; at < base_ + end; ++at)
    owner_.next_origins_.push_back(owner_.origin(static_cast<uint32_t>(at)));
}

void PieceText::Writer::put(std::string_view text, size_t like) {
  owner_.next_text_.append(text);
  owner_.next_origins_.insert(owner_.next_origins_.end(), text.size(),
                              owner_.origin(base_ + static_cast<uint32_t>(like)));
}

}  // namespace sluice
