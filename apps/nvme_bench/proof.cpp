#include "apps/nvme_bench/proof.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <vector>

#include "apps/common/option_values.h"
#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice::nvme_bench {
namespace {

constexpr uint64_t kSectorBytes =
    512;                              // of the stat file, whatever the drive's own (Documentation/block/stat)
constexpr double kLeastShare = 0.99;  // of the bytes asked for that must have been counted
constexpr double kMostResident = 0.01;  // of the file's pages
constexpr uint64_t kMapPiece = uint64_t{1} << 30;

std::optional<std::string> whole_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::optional<ByteCount> minus(const std::optional<ByteCount>& after,
                               const std::optional<ByteCount>& before) {
  if (!after || !before) return std::nullopt;
  return ByteCount{after->read_bytes - before->read_bytes, after->written_bytes - before->written_bytes};
}

bool covers(const ByteCount& counted, const ByteCount& asked) {
  const auto is_enough = [](uint64_t have, uint64_t want) {
    return static_cast<double>(have) >= kLeastShare * static_cast<double>(want);
  };
  return is_enough(counted.read_bytes, asked.read_bytes) &&
         is_enough(counted.written_bytes, asked.written_bytes);
}

std::string shortfall(const char* who, const ByteCount& counted, const ByteCount& asked) {
  return std::string(who) + " counts " + size_text(counted.read_bytes) + " read and " +
         size_text(counted.written_bytes) + " written where " + size_text(asked.read_bytes) + " and " +
         size_text(asked.written_bytes) + " were asked for: some transfers never reached a drive";
}

}  // namespace

std::optional<ByteCount> parse_process_io(const std::string& text) {
  std::istringstream in(text);
  ByteCount count;
  int found = 0;
  uint64_t value = 0;
  for (std::string key; in >> key >> value;) {
    if (key == "read_bytes:") count.read_bytes = value, ++found;
    if (key == "write_bytes:") count.written_bytes = value, ++found;
  }
  return found == 2 ? std::optional(count) : std::nullopt;
}

std::optional<ByteCount> parse_device_stat(const std::string& text) {
  std::istringstream in(text);
  std::array<uint64_t, 7> fields{};  // reads, merged, sectors read, ms, writes, merged, sectors written
  for (uint64_t& field : fields)
    if (!(in >> field)) return std::nullopt;
  return ByteCount{fields[2] * kSectorBytes, fields[6] * kSectorBytes};
}

std::optional<ByteCount> process_byte_count() {
  const std::optional<std::string> text = whole_text("/proc/self/io");
  return text ? parse_process_io(*text) : std::nullopt;
}

std::optional<ByteCount> device_byte_count(dev_t device) {
  const std::optional<std::string> text = whole_text("/sys/dev/block/" + std::to_string(major(device)) + ":" +
                                                     std::to_string(minor(device)) + "/stat");
  return text ? parse_device_stat(*text) : std::nullopt;
}

Residency residency(int descriptor, uint64_t size_bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  Residency result;
  for (uint64_t offset = 0; offset < size_bytes; offset += kMapPiece) {
    const auto length = static_cast<size_t>(std::min(kMapPiece, size_bytes - offset));
    void* mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED)
      throw Error(ErrorKind::runtime, "cannot map the test file: " + errno_text(errno));
    std::vector<unsigned char> pages(divide_up<uint64_t>(length, page));
    const int error_number = ::mincore(mapped, length, pages.data()) == 0 ? 0 : errno;
    ::munmap(mapped, length);
    if (error_number != 0)
      throw Error(ErrorKind::runtime, "cannot ask for the test file's pages: " + errno_text(error_number));
    result.page_count += pages.size();
    result.resident_count += static_cast<uint64_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char flags) { return (flags & 1) != 0; }));
  }
  return result;
}

std::string find_doubt(const Drive& drive, const std::string& buffered_reason, const Proof& proof) {
  if (drive.kind == Drive::Kind::memory) {
    return (drive.disk.empty() ? drive.file_system : drive.disk) +
           " keeps its files in RAM: there is no drive behind this folder";
  }
  if (drive.kind == Drive::Kind::network)
    return drive.file_system + " sends its files over a network: the drive is another machine's";
  if (!buffered_reason.empty()) return "the transfers are buffered: " + buffered_reason;
  const Residency& pages = proof.residency;
  if (static_cast<double>(pages.resident_count) > kMostResident * static_cast<double>(pages.page_count)) {
    return std::to_string(pages.resident_count) + " of the file's " + std::to_string(pages.page_count) +
           " pages lie in the page cache";
  }
  if (!proof.process && !proof.device)
    return "neither /proc/self/io nor the device's stat file can be read here: nobody counts the transfers";
  if (proof.process && !covers(*proof.process, proof.asked))
    return shortfall("/proc/self/io", *proof.process, proof.asked);
  // All zero: this device keeps no statistics (queue/iostats).
  const bool device_counts =
      proof.device && (!proof.process || proof.device->read_bytes + proof.device->written_bytes > 0);
  if (device_counts && !covers(*proof.device, proof.asked))
    return shortfall(drive.disk.c_str(), *proof.device, proof.asked);
  return "";
}

DriveWatch::DriveWatch(Drive drive) : drive_(std::move(drive)), process_before_(process_byte_count()) {
  if (drive_.counted_device) device_before_ = device_byte_count(*drive_.counted_device);
}

Proof DriveWatch::finish(const ByteCount& asked, int descriptor, uint64_t size_bytes,
                         const std::string& buffered_reason) const {
  Proof proof{.asked = asked};
  proof.process = minus(process_byte_count(), process_before_);
  if (drive_.counted_device) proof.device = minus(device_byte_count(*drive_.counted_device), device_before_);
  proof.residency = residency(descriptor, size_bytes);
  proof.doubt = find_doubt(drive_, buffered_reason, proof);
  return proof;
}

}  // namespace sluice::nvme_bench
