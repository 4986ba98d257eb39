#include "gpu/host/arena.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <string>
#include <sys/mman.h>

#include "engine/base/math.h"

namespace sluice::gpu {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kPageBytes = size_t{4} << 10;

// A mapping whose begin is a multiple of 2 MiB where it is that large; nullptr with errno where there is
// none.
std::byte* map(size_t mapped_bytes) {
  const size_t slack = mapped_bytes >= kHugePageBytes ? kHugePageBytes : 0;
  void* mapping = mmap(nullptr, mapped_bytes + slack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapping);
  if (slack == 0) return begin;
  const size_t head = (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (head > 0) munmap(begin, head);
  if (slack > head) munmap(begin + head + mapped_bytes, slack - head);
  madvise(begin + head, mapped_bytes, MADV_HUGEPAGE);  // advice: without it only slower
  return begin + head;
}

}  // namespace

class Arena::Memory final : public DeviceMemory {
 public:
  Memory(Arena& arena, size_t size_bytes)
      : arena_(arena),
        size_bytes_(size_bytes),
        mapped_bytes_(round_up(std::max(size_bytes, size_t{1}), kPageBytes)),
        data_(map(mapped_bytes_)) {
    if (data_ == nullptr) {
      throw Error(ErrorKind::resource, "device memory: the system has no " + std::to_string(size_bytes) +
                                           " bytes for it: " + errno_text(errno) +
                                           ". Lower --device_memory or free RAM.");
    }
    MutexLock lock(arena_.mutex_);
    arena_.allocations_.emplace(data_, size_bytes_);
  }
  ~Memory() override {
    {
      MutexLock lock(arena_.mutex_);
      arena_.allocations_.erase(data_);
    }
    // Before the address can be handed out again.
    if (arena_.observer_) arena_.observer_->on_free(data_, mapped_bytes_);
    munmap(data_, mapped_bytes_);
    arena_.budget_.give_back(size_bytes_);
  }
  std::byte* data() const override { return data_; }
  size_t size_bytes() const override { return size_bytes_; }

 private:
  Arena& arena_;
  const size_t size_bytes_;
  const size_t mapped_bytes_;
  std::byte* const data_;
};

Arena::~Arena() {
  MutexLock lock(mutex_);
  SLUICE_CHECK(allocations_.empty(), "device memory outlives its device");
}

std::unique_ptr<DeviceMemory> Arena::allocate(size_t size_bytes) {
  budget_.reserve(size_bytes);
  try {
    auto memory = std::make_unique<Memory>(*this, size_bytes);
    if (observer_) observer_->on_allocate(memory->data(), size_bytes);
    return memory;
  } catch (...) {
    budget_.give_back(size_bytes);
    throw;
  }
}

bool Arena::contains(const std::byte* begin, size_t size_bytes) const {
  MutexLock lock(mutex_);
  const auto above = allocations_.upper_bound(begin);
  if (above == allocations_.begin()) return false;
  const auto& [first, size] = *std::prev(above);
  const size_t offset = static_cast<size_t>(begin - first);
  return offset <= size && size_bytes <= size - offset;
}

}  // namespace sluice::gpu
