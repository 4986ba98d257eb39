#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice::nvme_bench {

// A counter of 16 bytes, as NVMe has them.
struct WideCount {
  uint64_t low = 0, high = 0;

  // Modulo 2^128.
  WideCount operator-(const WideCount& other) const;
  WideCount operator*(uint64_t factor) const;
  bool operator==(const WideCount&) const = default;
  double to_double() const;
  std::string decimal() const;
};

// What an NVMe drive says of its health: log page 02h, SMART / Health Information (NVM Express Base
// Specification 2.0c, figure 207). Counts are since the drive was made.
struct SmartLog {
  static constexpr size_t kBytes = 512;
  static constexpr uint64_t kDataUnitBytes = 512000;  // "thousands of units of 512 bytes"

  uint8_t critical_warning = 0;          // bits; 0: none
  double temperature_celsius = 0;        // composite
  unsigned available_spare_percent = 0;  // 100: all of it
  unsigned spare_threshold_percent = 0;  // below that the drive is to be replaced
  unsigned used_percent = 0;             // of the drive's life, by its maker; may exceed 100; 255: or more
  WideCount data_units_read, data_units_written;  // kDataUnitBytes each
  WideCount power_on_hours, unsafe_shutdowns, media_errors;

  WideCount written_bytes() const { return data_units_written * kDataUnitBytes; }
  WideCount read_bytes() const { return data_units_read * kDataUnitBytes; }
  // "its spare is low, it is too hot"; empty without a warning.
  std::string warnings() const;
};

SmartLog parse_smart_log(std::span<const std::byte, SmartLog::kBytes> page);

}  // namespace sluice::nvme_bench
