#include "io/aligned_buffer.h"

#include <cerrno>
#include <cstdint>
#include <string>
#include <sys/mman.h>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

[[noreturn]] void throw_no_room(size_t size_bytes, std::string_view what, int error_number) {
  throw Error(ErrorKind::resource, "cannot map " + std::to_string(size_bytes) + " bytes of RAM for " +
                                       std::string(what) + ": " + errno_text(error_number) +
                                       ". Free memory, or raise the limit (ulimit -v).");
}

// A mapping that begins on a huge page: map more, and give the ends back.
std::span<std::byte> map_aligned(size_t size_bytes, std::string_view what) {
  const size_t mapped_bytes = size_bytes + kHugePage;
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw_no_room(size_bytes, what, errno);
  std::byte* begin = static_cast<std::byte*>(mapped);
  const uintptr_t address = reinterpret_cast<uintptr_t>(begin);
  const size_t head = round_up(address, uintptr_t{kHugePage}) - address;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + size_bytes, kHugePage - head);
  // Best effort: without huge pages everything works, slower. Forked children must not copy pinned pages.
  madvise(begin + head, size_bytes, MADV_HUGEPAGE);
  madvise(begin + head, size_bytes, MADV_DONTFORK);
  return {begin + head, size_bytes};
}

// False, with errno, where there is no memory.
bool touch_all(std::span<std::byte> bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;  // EINVAL: a kernel before 5.14
#endif
  for (size_t i = 0; i < bytes.size(); i += kPage) *const_cast<volatile std::byte*>(&bytes[i]) = std::byte{0};
  return true;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t size_bytes, std::string_view what, Fill fill) {
  if (size_bytes == 0) return;
  bytes_ = map_aligned(round_up(size_bytes, kPage), what);
  if (fill == Fill::on_touch || touch_all(bytes_)) return;
  const int error_number = errno;
  munmap(bytes_.data(), bytes_.size());
  throw_no_room(size_bytes, what, error_number);
}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace sluice
