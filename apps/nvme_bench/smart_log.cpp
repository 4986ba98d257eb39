#include "apps/nvme_bench/smart_log.h"

#include <algorithm>
#include <array>

namespace sluice::nvme_bench {
namespace {

__extension__ using Wide = unsigned __int128;

Wide wide(const WideCount& count) {
  return (static_cast<Wide>(count.high) << 64) | count.low;
}

WideCount narrow(Wide value) {
  return {.low = static_cast<uint64_t>(value), .high = static_cast<uint64_t>(value >> 64)};
}

constexpr double kKelvin = 273.15;

// Little-endian, as everything of NVMe.
uint64_t number(std::span<const std::byte, SmartLog::kBytes> page, size_t offset, size_t size_bytes) {
  uint64_t value = 0;
  for (size_t i = size_bytes; i > 0; --i)
    value = (value << 8) | std::to_integer<uint64_t>(page[offset + i - 1]);
  return value;
}

WideCount count(std::span<const std::byte, SmartLog::kBytes> page, size_t offset) {
  return {.low = number(page, offset, 8), .high = number(page, offset + 8, 8)};
}

}  // namespace

WideCount WideCount::operator-(const WideCount& other) const {
  return narrow(wide(*this) - wide(other));
}

WideCount WideCount::operator*(uint64_t factor) const {
  return narrow(wide(*this) * factor);
}

double WideCount::to_double() const {
  return static_cast<double>(high) * 0x1p64 + static_cast<double>(low);
}

std::string WideCount::decimal() const {
  std::string digits;
  for (Wide rest = wide(*this); rest > 0 || digits.empty(); rest /= 10)
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string SmartLog::warnings() const {
  constexpr std::array kBits = {"its spare is low",           "its temperature is out of range",
                                "it is no longer reliable",   "it can only be read",
                                "its volatile memory failed", "its persistent memory can only be read"};
  std::string text;
  for (size_t bit = 0; bit < kBits.size(); ++bit)
    if ((critical_warning >> bit & 1) != 0) text += (text.empty() ? "" : ", ") + std::string(kBits[bit]);
  return text;
}

SmartLog parse_smart_log(std::span<const std::byte, SmartLog::kBytes> page) {
  const auto small = [&](size_t offset) { return static_cast<unsigned>(number(page, offset, 1)); };
  return {.critical_warning = static_cast<uint8_t>(small(0)),
          .temperature_celsius = static_cast<double>(number(page, 1, 2)) - kKelvin,
          .available_spare_percent = small(3),
          .spare_threshold_percent = small(4),
          .used_percent = small(5),
          .data_units_read = count(page, 32),
          .data_units_written = count(page, 48),
          .power_on_hours = count(page, 128),
          .unsafe_shutdowns = count(page, 144),
          .media_errors = count(page, 160)};
}

}  // namespace sluice::nvme_bench
