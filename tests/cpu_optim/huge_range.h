#pragma once

#include <cstdint>
#include <gtest/gtest.h>
#include <span>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/error.h"

namespace sluice::cpu_optim {

// A range of more elements than int32 counts, in address space only: untouched pages have no memory behind
// them.
template <class T>
class SparseRange {
 public:
  explicit SparseRange(size_t size) : size_(size) {
    void* data = mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SLUICE_CHECK(data != MAP_FAILED);
    data_ = static_cast<T*>(data);
  }
  ~SparseRange() { munmap(data_, size_ * sizeof(T)); }
  SparseRange(const SparseRange&) = delete;
  SparseRange& operator=(const SparseRange&) = delete;

  std::span<T> span() { return {data_, size_}; }

 private:
  T* data_;
  size_t size_;
};

// A huge range whose memory is one period of 2 MiB over and over: all of it can be read, at the speed of the
// cache.
template <class T>
class PeriodicRange {
 public:
  static constexpr size_t kPeriod = (2u << 20) / sizeof(T);

  explicit PeriodicRange(size_t periods) : range_(periods * kPeriod) {
    const int file = memfd_create("period", 0);
    SLUICE_CHECK(file >= 0 && ftruncate(file, 2 << 20) == 0);
    for (size_t i = 0; i < periods; ++i) {
      void* at = range_.span().data() + i * kPeriod;
      SLUICE_CHECK(mmap(at, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == at);
    }
    close(file);
  }

  std::span<T> span() { return range_.span(); }
  std::span<T> period() { return range_.span().first(kPeriod); }

 private:
  SparseRange<T> range_;
};

}  // namespace sluice::cpu_optim
