#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/io_queue.h"
#include "io/stripe_map.h"

namespace sluice {

// One range of bytes over one file per drive ("slab"), in stripes of 1 MiB dealt out in proportion to the
// drives' weights (StripeMap), so that a file can be opened again. Opened with O_DIRECT where the file system
// really bypasses the page cache, else buffered (and `buffered()` says so): then reads and writes leave pages
// in the cache, which sync() drops. Not written to yet, it reads as zero; the first write to a range is
// slower than later ones (the file system marks it written).
//
// Move-only. Const members may be called by several threads at once, and sync() while transfers run: it
// covers those that had completed before.
class StripedFile {
 public:
  struct Part {
    std::filesystem::path path;
    double weight = 1;  // measured bandwidth, in any unit; to open a file again give the very same
  };
  static constexpr size_t kStripeBytes = size_t{1} << 20;

  // `size_bytes` is a positive multiple of kIoAlignment. Neither follows symbolic links at the paths' ends.
  //
  // New files (O_EXCL, 0600), preallocated, their names synced; throws Error(resource) before anything is
  // written where a drive has no room, Error(usage) where a file is there already or a drive wants a larger
  // alignment, and leaves no file of its own behind when it throws.
  static StripedFile create(std::vector<Part> parts, uint64_t size_bytes);
  // Existing ones, of exactly these weights and size; Error(data) where a file is missing or has another
  // size, Error(usage) for a symbolic link, a foreign owner, or anything but a file.
  static StripedFile open(std::vector<Part> parts, uint64_t size_bytes);

  uint64_t size_bytes() const { return size_bytes_; }
  const std::vector<Part>& parts() const { return parts_; }
  // One a part, for IoQueueOptions.
  std::vector<int> descriptors() const;
  bool buffered() const { return !buffered_reason_.empty(); }
  // "PATH is not read and written directly: ..."; empty unless buffered().
  const std::string& buffered_reason() const { return buffered_reason_; }
  // Appends what transfers [offset, offset + size_bytes): one request per stripe crossed, neighbours in one
  // file merged up to 2 MiB (larger ones would leave a queue with too few); all with `tag`. offset,
  // size_bytes and data are multiples of kIoAlignment.
  void add_requests(IoRequest::Kind kind, uint64_t offset, size_t size_bytes, std::byte* data, uint64_t tag,
                    std::vector<IoRequest>& requests) const;
  // What lies behind a request, for messages: "PATH at offset N".
  std::string place(const IoRequest& request) const;
  // fdatasync of every file, and out of the page cache with it; throws Error(runtime or resource). After that
  // error nothing written since the last sync may be trusted, and a second sync proves nothing.
  void sync();
  // Removes the files' names (the contents stay until the last descriptor is closed).
  void unlink();

 private:
  StripedFile(std::vector<Part> parts, uint64_t size_bytes);
  uint64_t part_bytes(size_t part) const;
  void preallocate();
  void choose_mode();

  std::vector<Part> parts_;
  uint64_t size_bytes_ = 0;
  StripeMap map_;
  std::vector<File> files_;  // one a part
  std::string buffered_reason_;
};

}  // namespace sluice
