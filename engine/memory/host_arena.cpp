#include "engine/memory/host_arena.h"

namespace sluice {

HostArena::HostArena(TierBudget& budget, gpu::Device& device, size_t size_bytes, std::string_view what)
    : reservation_(budget.reserve(size_bytes, what)), memory_(size_bytes, what) {
  if (memory_.size_bytes() > 0)
    registration_ = device.register_host_memory(memory_.data(), memory_.size_bytes());
}

}  // namespace sluice
