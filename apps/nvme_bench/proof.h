#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/common/drive.h"

namespace sluice::nvme_bench {

// Bytes that went to or came from drives, by somebody's count.
struct ByteCount {
  uint64_t read_bytes = 0, written_bytes = 0;
};

// Of this process, as the kernel counts them where they leave for a block device (/proc/self/io); empty where
// it does not tell. What the page cache answered is not in it.
std::optional<ByteCount> process_byte_count();
// Of a block device, everybody's traffic together (/sys/dev/block/MAJOR:MINOR/stat).
std::optional<ByteCount> device_byte_count(dev_t device);
// The text of such a file.
std::optional<ByteCount> parse_process_io(const std::string& text);
std::optional<ByteCount> parse_device_stat(const std::string& text);

// Pages of an open file that lie in the page cache (mincore(2)).
struct Residency {
  uint64_t page_count = 0, resident_count = 0;
};
Residency residency(int descriptor, uint64_t size_bytes);

struct Proof {
  ByteCount asked;
  std::optional<ByteCount> process, device;
  Residency residency;
  std::string doubt;  // why nothing is proven; empty where the transfers reached the drive
  bool reached_drive() const { return doubt.empty(); }
};

// Judges the counts: `buffered_reason` is StripedFile's.
std::string find_doubt(const Drive& drive, const std::string& buffered_reason, const Proof& proof);

// Counts from its construction to finish().
class DriveWatch {
 public:
  explicit DriveWatch(Drive drive);
  Proof finish(const ByteCount& asked, int descriptor, uint64_t size_bytes,
               const std::string& buffered_reason) const;

 private:
  Drive drive_;
  std::optional<ByteCount> process_before_, device_before_;
};

}  // namespace sluice::nvme_bench
