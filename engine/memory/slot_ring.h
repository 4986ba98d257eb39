#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "gpu/stream.h"

namespace sluice {

// Equal slots in one range of memory, each with the event after which it may be written again. The plan says
// who uses which slot when; the ring only remembers. Used by one thread.
class SlotRing {
 public:
  SlotRing() = default;
  SlotRing(std::byte* begin, size_t slot_bytes, int slot_count)
      : begin_(begin), slot_bytes_(slot_bytes), free_after_(static_cast<size_t>(slot_count)) {}

  int slot_count() const { return static_cast<int>(free_after_.size()); }
  size_t slot_bytes() const { return slot_bytes_; }
  std::byte* slot(int index) const {
    SLUICE_CHECK(index >= 0 && index < slot_count());
    return begin_ + static_cast<size_t>(index) * slot_bytes_;
  }
  // Writes of `stream` from here on come after the slot's last use; asked once by the stream that writes
  // next.
  void wait_free(int index, gpu::Stream& stream) {
    std::optional<gpu::Event>& event = free_after_.at(static_cast<size_t>(index));
    if (event) stream.wait(*event);
    event.reset();
  }
  const std::optional<gpu::Event>& free_after(int index) const {
    return free_after_.at(static_cast<size_t>(index));
  }
  void release(int index, gpu::Event event) { free_after_.at(static_cast<size_t>(index)) = std::move(event); }

 private:
  std::byte* begin_ = nullptr;
  size_t slot_bytes_ = 0;
  std::vector<std::optional<gpu::Event>> free_after_;
};

}  // namespace sluice
