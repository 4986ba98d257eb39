#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/common/version.h"
#include "apps/nvme_bench/options.h"
#include "tests/support/expect_error.h"

namespace sluice::nvme_bench {
namespace {

using Arguments = std::vector<std::string>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

Options parse(const Arguments& arguments) {
  return std::get<Options>(parse_options(arguments));
}

TEST(NvmeOptions, HaveDefaults) {
  const Options options = parse({});
  EXPECT_THAT(options.folders, ElementsAre("."));
  EXPECT_THAT(options.traffic, ElementsAre(Traffic::read, Traffic::write, Traffic::mixed));
  EXPECT_FALSE(options.size);
  EXPECT_EQ(options.seconds, 5);
  EXPECT_TRUE(options.save);
  EXPECT_FALSE(options.json);
  EXPECT_EQ(parse({"--quick"}).seconds, 1);
  EXPECT_LT(parse({"--quick"}).depths.size(), options.depths.size());
}

TEST(NvmeOptions, AreReadAsThoseOfFinetune) {
  const Options options = parse({"--folder", "a,b", "folder=c", "--block-size=1MiB,512KiB", "--depth", "8MiB",
                                 "--traffic", "write,read,write", "--queue", "threads", "--seconds", "0.25",
                                 "--size=64MiB", "--json", "--save=false", "--quick"});
  EXPECT_THAT(options.folders, ElementsAre("a", "b", "c"));
  EXPECT_THAT(options.block_sizes, ElementsAre(kMiB / 2, kMiB));
  EXPECT_THAT(options.depths, ElementsAre(8 * kMiB));
  EXPECT_THAT(options.traffic, ElementsAre(Traffic::read, Traffic::write));
  EXPECT_EQ(options.queue, QueueChoice::threads);
  EXPECT_EQ(options.seconds, 0.25);
  EXPECT_EQ(options.size, 64 * kMiB);
  EXPECT_TRUE(options.json);
  EXPECT_FALSE(options.save);
  EXPECT_TRUE(options.measures(Traffic::write));
  EXPECT_FALSE(options.measures(Traffic::mixed));
}

TEST(NvmeOptions, OfLongWritesAreATimeOrASize) {
  const auto seconds = [](const std::string& text) {
    const Options options = parse({"--sustained", text});
    EXPECT_FALSE(options.sustained->bytes);
    return options.sustained->seconds;
  };
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds("1.5s"), 1.5);
  EXPECT_EQ(seconds("10min"), 600);
  EXPECT_EQ(seconds("2h"), 7200);
  EXPECT_EQ(parse({"--sustained", "200GiB"}).sustained->bytes, uint64_t{200} << 30);
  EXPECT_FALSE(parse({}).sustained);
}

TEST(NvmeOptions, OfMixesAndSmallReads) {
  EXPECT_THAT(parse({"--mixed", "0.7,0.25"}).read_shares, ElementsAre(0.7, 0.25));
  EXPECT_TRUE(parse({}).measures_load());
  EXPECT_FALSE(parse({"--quick"}).measures_load());
  EXPECT_TRUE(parse({"--quick", "--load_latency"}).measures_load());
  EXPECT_FALSE(parse({"--load_latency=false"}).measures_load());
}

TEST(NvmeOptions, AreExplained) {
  const std::string help = std::get<Text>(parse_options(Arguments{"--help"})).text;
  for (const char* word : {"Usage: nvme_bench", "--quick", "--folder", "--depth", "--json"})
    EXPECT_THAT(help, HasSubstr(word));
  EXPECT_THAT(std::get<Text>(parse_options(Arguments{"--version"})).text, HasSubstr(std::string(kVersion)));
}

struct Wrong {
  Arguments arguments;
  std::vector<std::string> texts;
};

class WrongNvmeOptions : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongNvmeOptions, AreNamed) {
  test::expect_error(ErrorKind::usage, GetParam().texts, [&] { parse(GetParam().arguments); });
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongNvmeOptions,
    ::testing::Values(Wrong{{"--foldr", "x"}, {"--foldr", "of nvme_bench", "Did you mean --folder?"}},
                      Wrong{{"x"}, {"'x'"}}, Wrong{{"--folder", "a,,b"}, {"--folder", "empty"}},
                      Wrong{{"--folder", ""}, {"--folder", "empty"}},
                      Wrong{{"--block_size", "1000"}, {"--block_size", "'1000'", "4 KiB"}},
                      Wrong{{"--block_size", "4MiB"}, {"--block_size", "2 MiB"}},
                      Wrong{{"--block_size", "1MiB,x"}, {"--block_size", "'x'"}},
                      Wrong{{"--depth", "8"}, {"--depth", "'8'"}},
                      Wrong{{"--depth", "512KiB"}, {"--depth", "512 KiB", "2 MiB"}},
                      Wrong{{"--block_size", "4KiB", "--depth", "8MiB"}, {"--depth", "1024"}},
                      Wrong{{"--traffic", "raed"}, {"--traffic", "Did you mean read?"}},
                      Wrong{{"--size", "16MiB"}, {"--size", "16 MiB", "128 MiB"}},
                      Wrong{{"--seconds", "-1"}, {"--seconds"}},
                      Wrong{{"--sustained", "0"}, {"--sustained", "'0'"}},
                      Wrong{{"--sustained", "25h"}, {"--sustained", "'25h'"}},
                      Wrong{{"--sustained", "soon"}, {"--sustained", "'soon'"}},
                      Wrong{{"--sustained", "0GiB"}, {"--sustained", "writes nothing"}},
                      Wrong{{"--mixed", "1"}, {"--mixed", "'1'", "0.7"}},
                      Wrong{{"--mixed", "0.5,x"}, {"--mixed", "'x'"}},
                      Wrong{{"--svg", "/dev/null"}, {"--svg", "/dev/null", "no file"}},
                      Wrong{{"--svg", "/no/such/folder/a.svg"}, {"--svg", "no folder /no/such/folder"}},
                      Wrong{{"--queue", "aio"}, {"--queue", "io_uring"}}));

}  // namespace
}  // namespace sluice::nvme_bench
