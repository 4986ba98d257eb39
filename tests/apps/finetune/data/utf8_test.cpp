#include "apps/finetune/data/utf8.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Utf8, NamesTheFirstBadByte) {
  EXPECT_EQ(utf8::first_invalid(""), utf8::kValid);
  EXPECT_EQ(utf8::first_invalid("plain text, over eight bytes"), utf8::kValid);
  EXPECT_EQ(utf8::first_invalid("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"), utf8::kValid);
  EXPECT_EQ(utf8::first_invalid("12345678\xff"), 8u);
  EXPECT_EQ(utf8::first_invalid("a\xc0\x80"), 1u) << "overlong";
  EXPECT_EQ(utf8::first_invalid("ab\xe0\x80\x80"), 2u) << "overlong";
  EXPECT_EQ(utf8::first_invalid("\xed\xa0\x80"), 0u) << "surrogate";
  EXPECT_EQ(utf8::first_invalid("\xf4\x90\x80\x80"), 0u) << "over U+10FFFF";
  EXPECT_EQ(utf8::first_invalid("x\xe4\xb8"), 1u) << "cut off";
}

TEST(Utf8, EveryCodePointSurvives) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    utf8::append(text, c);
    ASSERT_EQ(utf8::first_invalid(text), utf8::kValid);
    ASSERT_EQ(utf8::length(text[0]), text.size());
    size_t at = 0;
    ASSERT_EQ(utf8::next(text, at), c);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(utf8::previous(text, at), c);
    ASSERT_EQ(at, 0u);
  }
}

// The examples of the Unicode standard, section 3.9, "U+FFFD substitution of maximal subparts".
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(utf8::lossy("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(utf8::lossy("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), bad + bad + bad + bad + "A");
  EXPECT_EQ(utf8::lossy("a\xe4\xb8\xad"), "a\xe4\xb8\xad");
}

}  // namespace
}  // namespace sluice
