#include "apps/finetune/data/vocabulary.h"

#include <functional>

#include "engine/base/error.h"

namespace sluice {

void Vocabulary::add(std::string_view token, int64_t id) {
  const auto named = [&] { return "token \"" + std::string(token) + "\" has id " + std::to_string(id); };
  if (id < 0 || id >= kIdLimit)
    throw Error(ErrorKind::data,
                named() + ", ids from 0 to " + std::to_string(kIdLimit - 1) + " are possible");
  if (static_cast<size_t>(count_) * 2 >= slots_.size()) grow();
  if (static_cast<size_t>(id) >= places_.size()) places_.resize(static_cast<size_t>(id) + 1);
  const size_t at = slot(token);
  const auto new_id = static_cast<int32_t>(id);
  if (has(new_id) && slots_[at] != new_id)
    throw Error(ErrorKind::data,
                named() + ", which \"" + std::string(this->token(new_id)) + "\" already has");
  if (slots_[at] < 0) {
    ++count_;
  } else {
    places_[static_cast<size_t>(slots_[at])].length = -1;
  }
  if (arena_.size() + token.size() > UINT32_MAX) throw Error(ErrorKind::data, "the vocabulary is over 4 GB");
  places_[static_cast<size_t>(id)] = {static_cast<uint32_t>(arena_.size()),
                                      static_cast<int32_t>(token.size())};
  arena_.append(token);
  slots_[at] = new_id;
}

int32_t Vocabulary::find(std::string_view token) const {
  return slots_.empty() ? -1 : slots_[slot(token)];
}

bool Vocabulary::has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < places_.size() && places_[static_cast<size_t>(id)].length >= 0;
}

std::string_view Vocabulary::token(int32_t id) const {
  if (!has(id)) return {};
  const Place& place = places_[static_cast<size_t>(id)];
  return {arena_.data() + place.offset, static_cast<size_t>(place.length)};
}

// The slot that holds `token`, or the empty one where it belongs.
size_t Vocabulary::slot(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t at = std::hash<std::string_view>{}(token)&mask;
  while (slots_[at] >= 0 && this->token(slots_[at]) != token) at = (at + 1) & mask;
  return at;
}

void Vocabulary::grow() {
  std::vector<int32_t> old = std::move(slots_);
  slots_.assign(old.empty() ? 1024 : old.size() * 2, -1);
  for (const int32_t id : old) {
    if (id >= 0) slots_[slot(token(id))] = id;
  }
}

}  // namespace sluice
