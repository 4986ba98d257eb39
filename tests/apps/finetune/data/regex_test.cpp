#include "apps/finetune/data/regex.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "apps/finetune/data/unicode_classes.h"
#include "apps/finetune/data/utf8.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using Matches = std::vector<std::pair<size_t, size_t>>;

Matches matches(const Regex& regex, std::string_view text) {
  Matches result;
  regex.for_each(text, [&](Regex::Match match) { result.emplace_back(match.begin, match.end); });
  return result;
}

bool matches_whole(const Regex& regex, char32_t c) {
  std::string text;
  utf8::append(text, c);
  return matches(regex, text) == Matches{{0, text.size()}};
}

// Inside and outside brackets, plain and negated, every class is the oracle's, whatever Unicode version PCRE2
// has.
TEST(Regex, ClassesAreThoseOfTheOracle) {
  for (const std::string name :
       {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "s", "Han", "hf_numeric", "hf_punctuation"}) {
    const std::string lower = name == "s" ? "\\s" : "\\p{" + name + "}";
    const std::string upper = name == "s" ? "\\S" : "\\P{" + name + "}";
    const Regex plain(lower), bracketed("[" + lower + "]"), negated(upper), excluded("[^" + lower + "]");
    for (char32_t c = 0; c <= 0x3ffff; c += c < 0x300 ? 1 : 7) {
      if (c >= 0xd800 && c < 0xe000) continue;
      const bool in = contains(unicode_class(name), c);
      ASSERT_EQ(matches_whole(plain, c), in) << name << " U+" << std::hex << static_cast<uint32_t>(c);
      ASSERT_EQ(matches_whole(bracketed, c), in) << name << " U+" << std::hex << static_cast<uint32_t>(c);
      ASSERT_EQ(matches_whole(negated, c), !in) << name << " U+" << std::hex << static_cast<uint32_t>(c);
      ASSERT_EQ(matches_whole(excluded, c), !in) << name << " U+" << std::hex << static_cast<uint32_t>(c);
    }
  }
}

TEST(Regex, WhiteSpaceIsNotWhatPcre2Says) {
  const Regex space("\\s");
  EXPECT_FALSE(matches_whole(space, 0x180e));
  EXPECT_FALSE(matches_whole(space, 0x200b));
  EXPECT_FALSE(matches_whole(space, 0x1c));
  EXPECT_TRUE(matches_whole(space, 0x85));
  EXPECT_TRUE(matches_whole(space, 0x3000));
}

// The program for ASCII and the one for everything must agree wherever both could be asked. An impossible
// lookbehind keeps the second pattern from having one for ASCII.
TEST(Regex, AsciiProgramAgreesWithTheOther) {
  const std::string patterns[] = {
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      R"((?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}|\s+(?!\S)|\s+|.)",
      R"([a-é]+|\x{e9}?b|é?c|\p{Han}|[^\u00e9\s]+$)", R"(\w+|\h|\v|[\W_]*x)"};
  const std::string alphabet[] = {"a",
                                  "B",
                                  "c",
                                  "x",
                                  "'",
                                  "s",
                                  "re",
                                  " ",
                                  "  ",
                                  "\n",
                                  "\r\n",
                                  "7",
                                  "1234",
                                  "_",
                                  ".",
                                  "-!",
                                  "é",
                                  "中",
                                  "ſ",
                                  "\u00a0",
                                  "\u0301",
                                  "😀",
                                  "longer words of ASCII ",
                                  "b"};
  std::mt19937 random(7);
  for (const std::string& pattern : patterns) {
    if (pattern.find("\\W_") != std::string::npos) {
      test::expect_error(ErrorKind::data, {"\\W"}, [&] { const Regex refused(pattern); });
      continue;
    }
    const Regex fast(pattern), slow("(?:" + pattern + ")(?<!\\x{10ffff}\\x{10ffff})");
    for (int trial = 0; trial < 3000; ++trial) {
      std::string text;
      for (auto n = random() % 30; n > 0; --n) text += alphabet[random() % std::size(alphabet)];
      ASSERT_EQ(matches(fast, text), matches(slow, text)) << pattern << "\non " << text;
    }
  }
}

TEST(Regex, ReadsRubySyntax) {
  EXPECT_EQ(matches(Regex("\\h+"), "xyz1aFg"), (Matches{{3, 6}}));
  EXPECT_EQ(matches(Regex("a\\vb"),
                    "a\x0b"
                    "b"),
            (Matches{{0, 3}}));
  EXPECT_EQ(matches(Regex("^b$"), "a\nb\nc"), (Matches{{2, 3}}));
  EXPECT_EQ(matches(Regex("\\u00e9"), "e\u00e9"), (Matches{{1, 3}}));
  EXPECT_EQ(matches(Regex("[]x]"), "]x["), (Matches{{0, 1}, {1, 2}}));
}

TEST(Regex, EmptyMatchesMoveOn) {
  EXPECT_EQ(matches(Regex("b*"), "abb\u00e9"), (Matches{{0, 0}, {1, 3}, {5, 5}}));
  EXPECT_EQ(matches(Regex("b*"), ""), (Matches{{0, 0}}));
}

TEST(Regex, LiteralTakesNothingForSyntax) {
  EXPECT_EQ(matches(Regex::literal("."), "a.b"), (Matches{{1, 2}}));
  EXPECT_EQ(matches(Regex::literal("▁"), "a▁"), (Matches{{1, 4}}));
}

TEST(Regex, RefusesByName) {
  const auto refuses = [](const std::string& pattern, const std::string& why) {
    test::expect_error(ErrorKind::data, {pattern, why}, [&] { const Regex regex(pattern); });
  };
  refuses("(\\p{L}+", "compile");
  refuses("[a[bc]]", "inside character classes");
  refuses("[a-z&&[^b]]", "&&");
  refuses("(?m:.)", "(?m)");
  refuses("a\\K", "\\K");
  refuses("[abc", "closed");
  refuses("a\\", "backslash");
}

// A megabyte of one character is one match, with or without something behind it.
TEST(Regex, LongRunsEnd) {
  const Regex regex(R"(\p{N}{1,3}| ?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+)");
  const std::string run(1 << 20, ' ');
  EXPECT_EQ(matches(regex, run), (Matches{{0, run.size()}}));
  EXPECT_EQ(matches(regex, run + "é"), (Matches{{0, run.size() - 1}, {run.size() - 1, run.size() + 2}}));
}

}  // namespace
}  // namespace sluice
