#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace sluice {

// Words met before and their tokens: 1 MiB, direct-mapped, a newer word replaces an older one. Most words of
// a text are few; the cache turns merging into one lookup. One thread at a time.
class WordCache {
 public:
  static constexpr size_t kWordMost = 22;
  static constexpr size_t kTokensMost = 8;

  struct Entry {  // one cache line
    std::array<char, kWordMost> word{};
    uint8_t length = 0;  // 0: empty
    uint8_t count = 0;
    std::array<uint8_t, kTokensMost> lengths{};
    std::array<int32_t, kTokensMost> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  // The place of a word of 1 to kWordMost bytes. It holds the word if holds() says so; otherwise put() may
  // fill it.
  Entry& place(std::string_view word) {
    if (entries_.empty()) entries_.resize(kEntries);
    return entries_[hash(word) & (kEntries - 1)];
  }
  static bool holds(const Entry& entry, std::string_view word) {
    return entry.length == word.size() && std::memcmp(entry.word.data(), word.data(), word.size()) == 0;
  }
  static void put(Entry& entry, std::string_view word, const int32_t* ids, const uint32_t* lengths,
                  size_t count) {
    if (count > kTokensMost) return;
    std::memcpy(entry.word.data(), word.data(), word.size());
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(count);
    std::copy_n(ids, count, entry.ids.begin());
    std::transform(lengths, lengths + count, entry.lengths.begin(),
                   [](uint32_t length) { return static_cast<uint8_t>(length); });
  }

 private:
  static constexpr size_t kEntries = 1 << 14;

  static size_t hash(std::string_view word) {
    const char* const data = word.data();
    const size_t size = word.size();
    const auto load8 = [](const char* from) {
      uint64_t value;
      std::memcpy(&value, from, sizeof value);
      return value;
    };
    uint64_t a = 0;
    uint64_t b = 0;
    if (size >= 8) {  // the first and the last eight bytes, and the middle where they leave any
      a = load8(data);
      b = load8(data + size - 8);
      if (size > 16) a ^= load8(data + 8) * 0xff51afd7ed558ccdu;
    } else {
      for (size_t i = 0; i < size; ++i) a = a << 8 | static_cast<uint8_t>(data[i]);
    }
    uint64_t key = (a + size) * 0x9e3779b97f4a7c15u ^ (b ^ b >> 29) * 0xc4ceb9fe1a85ec53u;
    key ^= key >> 32;
    key *= 0xff51afd7ed558ccdu;
    return static_cast<size_t>(key >> 40);
  }

  std::vector<Entry> entries_;  // made on first use
};

}  // namespace sluice
