#pragma once

#include <cstdint>
#include <span>
#include <sys/mman.h>

#include "cpu_optim/adamw.h"
#include "cpu_optim/state_codec.h"

namespace sluice::cpu_optim {

// Zeroed memory in huge pages: 4 KiB pages cost 3 to 13 % (facts/optimizer.md).
class HugePages {
 public:
  explicit HugePages(size_t size_bytes) {
    // A page more, so that the start can be moved onto a huge page, and one so that streams of the same size
    // are not at distances at which three of fp32 take 30 % longer (seen on Zen 4, limit and kernel alike).
    mapped_bytes_ = (size_bytes + (3 * kHugePage) - 1) / kHugePage * kHugePage;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SLUICE_CHECK(mapped_ != MAP_FAILED);
    madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);
    const auto start = (reinterpret_cast<uintptr_t>(mapped_) + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<std::byte*>(start);
  }
  ~HugePages() { munmap(mapped_, mapped_bytes_); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  static constexpr size_t kHugePage = 2 << 20;
  size_t mapped_bytes_;
  void* mapped_;
  std::byte* data_;
};

// A state whose weights are a sawtooth of 2039 values; moments are zero.
class StateMemory {
 public:
  StateMemory(StateFormat format, int64_t size)
      : format_(format),
        size_(size),
        weight_(static_cast<size_t>(size) * sizeof(BFloat16)),
        low_(low_bytes(format, size)),
        m_(moment_bytes(format, size)),
        v_(moment_bytes(format, size)) {
    for (int64_t i = 0; i < size; ++i) {
      const float weight = static_cast<float>(i % 2039 - 1019) * 0x1p-10f;
      const SplitFloat halves = split(weight);
      weight_.as<BFloat16>()[i] = halves.high;
      if (format == StateFormat::fp32) low_.as<float>()[i] = weight;
      if (low_bytes(format, 1) == 2) low_.as<int16_t>()[i] = halves.low;
    }
  }

  StateSpan span() const {
    return {.format = format_,
            .size = size_,
            .weight = weight_.as<BFloat16>(),
            .low = low_.as<std::byte>(),
            .first_moment = m_.as<std::byte>(),
            .second_moment = v_.as<std::byte>()};
  }

 private:
  StateFormat format_;
  int64_t size_;
  HugePages weight_, low_, m_, v_;
};

class GradientMemory {
 public:
  explicit GradientMemory(int64_t size) : size_(size), pages_(static_cast<size_t>(size) * sizeof(BFloat16)) {
    for (int64_t i = 0; i < size; ++i) {
      pages_.as<BFloat16>()[i] = to_bfloat16(static_cast<float>(i % 1021 - 510) * 0x1p-14f);
    }
  }
  FloatView view() const { return std::span(pages_.as<const BFloat16>(), static_cast<size_t>(size_)); }

 private:
  int64_t size_;
  HugePages pages_;
};

}  // namespace sluice::cpu_optim
