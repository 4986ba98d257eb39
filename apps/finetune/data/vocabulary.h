#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Tokens and their ids: one arena of bytes, one offset an id, one open-addressing table. About 16 bytes a
// token beside its text. Ids may have gaps. Immutable once filled, then safe to read from any thread.
class Vocabulary {
 public:
  // Ids from here on are refused: a file that holds one is damaged, and the tables are as long as the
  // greatest id.
  static constexpr int32_t kIdLimit = 1 << 24;

  // A token named twice takes the later id, as in Hugging Face's reader. Throws Error(data) for ids out of
  // range or taken.
  void add(std::string_view token, int64_t id);

  // -1 when the token is unknown.
  int32_t find(std::string_view token) const;
  // Empty when no token has this id. The view is valid until the next add.
  std::string_view token(int32_t id) const;
  bool has(int32_t id) const;

  int64_t size() const { return count_; }
  // One above the greatest id.
  int32_t id_end() const { return static_cast<int32_t>(places_.size()); }

 private:
  struct Place {
    uint32_t offset = 0;
    int32_t length = -1;  // -1: no token has this id
  };
  size_t slot(std::string_view token) const;
  void grow();

  std::string arena_;
  std::vector<Place> places_;   // by id
  std::vector<int32_t> slots_;  // ids by hash, -1 for empty; a power of two
  int64_t count_ = 0;
};

}  // namespace sluice
