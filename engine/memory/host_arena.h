#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/memory/tier.h"
#include "gpu/device.h"
#include "io/aligned_buffer.h"

namespace sluice {

// One anonymous mapping on pages of 2 MiB, counted against the host tier and registered with the device for
// copies. Zero where never written. Not thread-safe to create or destroy; the memory is whoever's uses it.
class HostArena {
 public:
  // Throws Error(resource) when the budget or the system has no room.
  HostArena(TierBudget& budget, gpu::Device& device, size_t size_bytes, std::string_view what);
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data() const { return memory_.data(); }
  size_t size_bytes() const { return memory_.size_bytes(); }
  std::span<std::byte> bytes() const { return memory_.bytes(); }

 private:
  Reservation reservation_;
  AlignedBuffer memory_;
  std::unique_ptr<gpu::HostRegistration> registration_;
};

}  // namespace sluice
