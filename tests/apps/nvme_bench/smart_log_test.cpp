#include "apps/nvme_bench/smart_log.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice::nvme_bench {
namespace {

using ::testing::HasSubstr;

using Page = std::array<std::byte, SmartLog::kBytes>;

void put(Page& page, size_t offset, uint64_t value, size_t size_bytes) {
  for (size_t i = 0; i < size_bytes; ++i) page[offset + i] = static_cast<std::byte>(value >> (8 * i));
}

// By the specification's table, byte by byte; what is not read is filled with 0xa5.
Page worn_drive() {
  Page page;
  page.fill(std::byte{0xa5});
  put(page, 0, 0x05, 1);   // spare low, reliability degraded
  put(page, 1, 331, 2);    // kelvin
  put(page, 3, 7, 1);      // spare
  put(page, 4, 10, 1);     // threshold
  put(page, 5, 103, 1);    // used: past its life
  put(page, 32, 1000, 8);  // units read
  put(page, 40, 0, 8);
  put(page, 48, 0xffffffffffffffff, 8);  // units written: 2^64 - 1 + 2 * 2^64
  put(page, 56, 2, 8);
  put(page, 128, 8760, 8);
  put(page, 136, 0, 8);
  put(page, 144, 12, 8);
  put(page, 152, 0, 8);
  put(page, 160, 3, 8);
  put(page, 168, 0, 8);
  return page;
}

TEST(SmartLogs, AreReadByTheSpecification) {
  const SmartLog log = parse_smart_log(worn_drive());
  EXPECT_EQ(log.critical_warning, 5);
  EXPECT_DOUBLE_EQ(log.temperature_celsius, 331 - 273.15);
  EXPECT_EQ(log.available_spare_percent, 7u);
  EXPECT_EQ(log.spare_threshold_percent, 10u);
  EXPECT_EQ(log.used_percent, 103u);
  EXPECT_EQ(log.read_bytes(), (WideCount{.low = 512'000'000}));
  EXPECT_EQ(log.power_on_hours, WideCount{8760});
  EXPECT_EQ(log.unsafe_shutdowns, WideCount{12});
  EXPECT_EQ(log.media_errors, WideCount{3});
  // 3 * 2^64 - 1 units of 512000 bytes.
  EXPECT_EQ(log.data_units_written.decimal(), "55340232221128654847");
  EXPECT_EQ(log.written_bytes().decimal(), "28334198897217871281664000");
  EXPECT_NEAR(log.written_bytes().to_double(), 2.8334198897217871e25, 1e10);
}

TEST(SmartLogs, SayWhatTheirWarningsMean) {
  EXPECT_EQ(parse_smart_log(Page{}).warnings(), "");
  const std::string warnings = parse_smart_log(worn_drive()).warnings();
  EXPECT_THAT(warnings, HasSubstr("spare is low"));
  EXPECT_THAT(warnings, HasSubstr("no longer reliable"));
  EXPECT_EQ(warnings.find("temperature"), std::string::npos);
}

TEST(WideCounts, CarryAndBorrow) {
  const WideCount large{.low = 0, .high = 1};
  EXPECT_EQ(large - WideCount{1}, (WideCount{.low = ~uint64_t{0}}));
  EXPECT_EQ(WideCount{uint64_t{1} << 63} * 4, (WideCount{.low = 0, .high = 2}));
  EXPECT_EQ(large.decimal(), "18446744073709551616");
  EXPECT_EQ(WideCount{}.decimal(), "0");
  EXPECT_EQ((WideCount{.low = ~uint64_t{0}, .high = ~uint64_t{0}}).decimal(),
            "340282366920938463463374607431768211455");
  EXPECT_EQ(large.to_double(), 0x1p64);
}

}  // namespace
}  // namespace sluice::nvme_bench
