#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/io_queue.h"

namespace sluice {

// One range of bytes over one file per drive ("slab"), in stripes of 1 MiB dealt out in proportion to the
// drives' weights. Opened with O_DIRECT where the file system takes it, else buffered (and `buffered()` says
// so). The mapping is a pure function of weights and size, so that a file can be opened again. Move-only.
class StripedFile {
 public:
  struct Part {
    std::filesystem::path path;
    double weight = 1;  // measured bandwidth, in any unit
  };
  static constexpr size_t kStripeBytes = size_t{1} << 20;

  // New files (O_EXCL, O_NOFOLLOW, 0600), preallocated; throws Error(resource) before anything is written
  // where a drive has no room, and leaves no file behind when it throws.
  static StripedFile create(std::vector<Part> parts, uint64_t size_bytes);
  // Existing ones, of exactly these weights and size; Error(data) where a file is missing or has another size,
  // Error(usage) for a symbolic link or a foreign owner.
  static StripedFile open(std::vector<Part> parts, uint64_t size_bytes);

  uint64_t size_bytes() const;
  const std::vector<Part>& parts() const;
  bool buffered() const;
  // Appends what transfers [offset, offset + size_bytes): one request per stripe crossed, neighbours in one file
  // merged; all with `tag`. offset, size_bytes and data are multiples of kIoAlignment.
  void add_requests(IoRequest::Kind kind, uint64_t offset, size_t size_bytes, std::byte* data, uint64_t tag,
                    std::vector<IoRequest>& requests) const;
  // What lies behind a request, for messages: "PATH at offset N".
  std::string place(const IoRequest& request) const;
  // fdatasync of every file.
  void sync();
  // Removes the files' names (the contents stay until the last descriptor is closed).
  void unlink();
};

}  // namespace sluice
