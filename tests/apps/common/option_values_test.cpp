#include "apps/common/option_values.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace sluice {
namespace {

TEST(Numbers, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_real("2e-5"), 2e-5);
  EXPECT_EQ(parse_real("1E-4"), 1e-4);
  EXPECT_EQ(parse_real(".5"), 0.5);
  EXPECT_EQ(parse_real("3"), 3);
  EXPECT_EQ(parse_integer("-12"), -12);
  EXPECT_EQ(parse_integer("1e3"), 1000);
  EXPECT_EQ(parse_integer("9223372036854775807"), INT64_MAX);
  for (const char* text : {"", " 1", "1 ", "1,5", "inf", "1e999", "0x10"})
    EXPECT_THROW(parse_real(text), Error) << text;
  for (const char* text : {"", "1.5", "1e-3", "9223372036854775808", "1e300", "1k"}) {
    EXPECT_THROW(parse_integer(text), Error) << text;
  }
}

TEST(Sizes, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("1024"), 1024u);
  EXPECT_EQ(parse_size("1024B"), 1024u);
  EXPECT_EQ(parse_size("512MiB"), 512u << 20);
  EXPECT_EQ(parse_size("512 mib"), 512u << 20);
  EXPECT_EQ(parse_size("2GiB"), 2ull << 30);
  EXPECT_EQ(parse_size("2G"), 2ull << 30);
  EXPECT_EQ(parse_size("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(parse_size("1.5GiB"), 3ull << 29);
  EXPECT_EQ(parse_size("3kB"), 3000u);
  EXPECT_EQ(parse_size("1TB"), 1'000'000'000'000u);
  EXPECT_EQ(parse_size("7TiB"), 7ull << 40);
  for (const char* text : {"", "MiB", "-1", "1XB", "1GiBs", "1iB", "nan", "1e30", "8388608TiB", "1 2"}) {
    EXPECT_THROW(parse_size(text), Error) << text;
  }
}

TEST(Sizes, ArePrintedInThreeDigits) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1 KiB");
  EXPECT_EQ(size_text(3ull << 29), "1.5 GiB");
  EXPECT_EQ(size_text(512u << 20), "512 MiB");
  EXPECT_EQ(size_text((12ull << 30) + (345u << 20)), "12.3 GiB");
}

TEST(NearestWord, CountsTypingErrors) {
  const std::vector<std::string> words = {"seed", "threads", "weight_decay"};
  EXPECT_EQ(nearest_word("sede", words), "seed");
  EXPECT_EQ(nearest_word("thread", words), "threads");
  EXPECT_EQ(nearest_word("wieght-decay", words), "weight_decay");
  EXPECT_EQ(nearest_word("output", words), std::nullopt);
  EXPECT_EQ(nearest_word("", words), std::nullopt);
  EXPECT_EQ(nearest_word("seed", {}), std::nullopt);
}

}  // namespace
}  // namespace sluice
