#include "io/direct_io.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "io/aligned_buffer.h"
#include "io/io_queue.h"

namespace sluice {
namespace {

// Linux 6.1 on says what a file's direct transfers must be multiples of; 0 where it does not know, or where
// there are none.
void check_alignment([[maybe_unused]] const File& file) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(file.descriptor(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) != 0) return;
  if ((info.stx_mask & STATX_DIOALIGN) == 0) return;
  const auto wanted = std::max(info.stx_dio_mem_align, info.stx_dio_offset_align);
  if (wanted <= kIoAlignment) return;
  throw Error(ErrorKind::usage, "the drive of " + file.path().string() + " wants transfers in multiples of " +
                                    std::to_string(wanted) + " bytes; here they are multiples of " +
                                    std::to_string(kIoAlignment) + ". Choose a folder on another drive.");
#endif
}

// Whether the page cache holds the file's first page.
bool is_cached(const File& file) {
  void* mapped = ::mmap(nullptr, kIoAlignment, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapped == MAP_FAILED) return false;
  unsigned char resident = 0;
  const bool is_known = ::mincore(mapped, kIoAlignment, &resident) == 0;
  ::munmap(mapped, kIoAlignment);
  return is_known && (resident & 1) != 0;
}

std::string try_transfers(const File& file) {
  const AlignedBuffer buffer(kIoAlignment, "a first transfer");
  ssize_t count = ::pread(file.descriptor(), buffer.data(), kIoAlignment, 0);
  if (count < 0) return "a direct read failed: " + errno_text(errno);
  if (count != static_cast<ssize_t>(kIoAlignment)) return "a direct read was cut short";
  count = ::pwrite(file.descriptor(), buffer.data(), kIoAlignment, 0);
  if (count < 0) return "a direct write failed: " + errno_text(errno);
  if (count != static_cast<ssize_t>(kIoAlignment)) return "a direct write was cut short";
  if (is_cached(file)) return "the file system takes O_DIRECT but keeps the data in the page cache";
  return "";
}

}  // namespace

std::string turn_on_direct_io(const File& file) {
  check_alignment(file);
  const int flags = ::fcntl(file.descriptor(), F_GETFL);
  if (flags < 0) throw_file_error("examine", file.path(), errno);
  // What others left in the cache would look like direct I/O that does not work.
  ::fdatasync(file.descriptor());
  ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  if (::fcntl(file.descriptor(), F_SETFL, flags | O_DIRECT) != 0)
    return "the file system refuses O_DIRECT: " + errno_text(errno);
  std::string reason = try_transfers(file);
  if (!reason.empty() && ::fcntl(file.descriptor(), F_SETFL, flags) != 0)
    throw_file_error("turn direct I/O off again for", file.path(), errno);
  return reason;
}

}  // namespace sluice
