#include "engine/memory/host_arena.h"

#include <cerrno>
#include <cstdint>
#include <sys/mman.h>

#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// A mapping that begins on a huge page: map more, and give the ends back.
std::byte* map_aligned(size_t size_bytes, std::string_view what) {
  const size_t mapped_bytes = size_bytes + kHugePage;
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorKind::resource, "cannot map " + format_bytes(size_bytes) + " of RAM for " +
                                         std::string(what) + ": " + errno_text(errno) +
                                         ". Free memory, or raise the limit (ulimit -v).");
  }
  std::byte* begin = static_cast<std::byte*>(mapped);
  const uintptr_t address = reinterpret_cast<uintptr_t>(begin);
  const size_t head = round_up(address, uintptr_t{kHugePage}) - address;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + size_bytes, kHugePage - head);
  // Best effort: without huge pages everything works, slower. Forked children must not copy pinned pages.
  madvise(begin + head, size_bytes, MADV_HUGEPAGE);
  madvise(begin + head, size_bytes, MADV_DONTFORK);
  return begin + head;
}

}  // namespace

HostArena::HostArena(TierBudget& budget, gpu::Device& device, size_t size_bytes, std::string_view what)
    : reservation_(budget.reserve(size_bytes, what)), size_bytes_(round_up(size_bytes, size_t{4096})) {
  if (size_bytes_ == 0) return;
  data_ = map_aligned(size_bytes_, what);
  try {
    registration_ = device.register_host_memory(data_, size_bytes_);
  } catch (...) {
    munmap(data_, size_bytes_);
    throw;
  }
}

HostArena::~HostArena() {
  registration_.reset();
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

}  // namespace sluice
