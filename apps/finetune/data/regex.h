#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// A compiled pattern of a tokenizer.json, in PCRE2 with its JIT. Patterns there are written for Oniguruma
// (Ruby syntax); the constructor rewrites what PCRE2 reads differently, and character classes to the Unicode
// version of the oracle (unicode_classes.h). Throws Error(data) that shows the pattern when it does not
// compile or means something else here.
//
// Text that is ASCII for a while is matched by a second program that knows nothing else, and is two to four
// times as fast.
//
// One thread at a time. A copy shares the compiled code and has scratch memory of its own, so each thread
// takes a copy.
class Regex {
 public:
  explicit Regex(std::string_view pattern);
  // Matches `text` itself.
  static Regex literal(std::string_view text);

  Regex(const Regex& other);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex other) noexcept;
  ~Regex();

  struct Match {
    size_t begin;
    size_t end;
  };
  // The first match at or after byte `from`; subject must be well-formed UTF-8, and is the whole of what the
  // pattern can see.
  std::optional<Match> find(std::string_view subject, size_t from) const {
    size_t ascii_end = 0;
    return find(subject, from, ascii_end);
  }

  // Calls found(Match) for all matches from left to right that do not overlap. An empty match right behind
  // the one before is passed over.
  template <class Found>
  void for_each(std::string_view subject, const Found& found) const {
    size_t from = 0;
    size_t last_end = kNone;
    size_t ascii_end = 0;
    while (from <= subject.size()) {
      const std::optional<Match> match = find(subject, from, ascii_end);
      if (!match) return;
      if (match->begin == match->end && match->end == last_end) {
        from = after(subject, match->end);
        continue;
      }
      found(*match);
      from = last_end = match->end;
    }
  }

 private:
  struct Code;
  struct Scratch;
  static constexpr size_t kNone = static_cast<size_t>(-1);
  explicit Regex(std::shared_ptr<const Code> code);
  // `ascii_end`, 0 at first, remembers how far the text is ASCII from `from` on.
  std::optional<Match> find(std::string_view subject, size_t from, size_t& ascii_end) const;
  static size_t after(std::string_view subject, size_t offset);

  std::shared_ptr<const Code> code_;
  std::unique_ptr<Scratch> scratch_;
};

// What a rewritten pattern will be matched against.
enum class RegexText {
  utf8,
  ascii,  // as bytes; no character of the pattern beyond ASCII matches anything
};

// The pattern as PCRE2 has to read it, see Regex.
std::string rewrite_for_pcre2(std::string_view pattern, RegexText text);

}  // namespace sluice
