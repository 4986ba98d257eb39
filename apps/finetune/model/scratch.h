#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/base/error.h"
#include "engine/base/math.h"
#include "gpu/view.h"

namespace sluice::finetune {

// Hands out pieces of one range of device memory, one after another; Scope takes back what was handed out
// since. In measuring mode it hands out addresses that must not be used and only finds out how much is
// needed.
class Scratch {
 public:
  static constexpr size_t kAlignment = 512;

  Scratch(std::byte* begin, size_t size_bytes) : begin_(begin), size_bytes_(size_bytes) {}
  static Scratch measuring() { return Scratch(reinterpret_cast<std::byte*>(kAlignment), SIZE_MAX / 2); }

  gpu::View take(DType dtype, int64_t rows, int64_t cols) {
    std::byte* const data = begin_ + used_bytes_;
    used_bytes_ += round_up(static_cast<size_t>(rows * cols) * size_bytes(dtype), kAlignment);
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    SLUICE_CHECK(used_bytes_ <= size_bytes_, "the plan gave too little scratch memory");
    return gpu::View(data, dtype, rows, cols);
  }
  size_t peak_bytes() const { return peak_bytes_; }

  class Scope {
   public:
    explicit Scope(Scratch& scratch) : scratch_(scratch), used_bytes_(scratch.used_bytes_) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { scratch_.used_bytes_ = used_bytes_; }

   private:
    Scratch& scratch_;
    size_t used_bytes_;
  };

 private:
  std::byte* begin_;
  size_t size_bytes_;
  size_t used_bytes_ = 0;
  size_t peak_bytes_ = 0;
};

}  // namespace sluice::finetune
