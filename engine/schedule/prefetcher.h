#pragma once

#include <deque>
#include <functional>

#include "engine/memory/slot_ring.h"
#include "engine/memory/tensor_store.h"
#include "engine/schedule/mover.h"
#include "engine/schedule/plan.h"

namespace sluice {

// Keeps the copies of the plan's next accesses in flight: when access i is asked for, those up to i +
// distance have been handed to the mover. Each passes through a landing slot, free again once the access
// before it in that slot is prepared. Used by the trainer's thread.
class Prefetcher {
 public:
  // `landing` is the device memory of the plan's landing slots.
  Prefetcher(const Plan& plan, const TensorStore& store, Mover& mover, DType compute_dtype,
             std::byte* landing);

  void begin_walk(bool first_walk);
  bool fetches(int access) const;

  struct Landed {
    std::byte* data = nullptr;
    int slot = 0;
    gpu::Event copied;
  };
  // The bytes of the access, which must be the next that fetches. Blocks until the copy is enqueued.
  Landed take(int access);
  void release(int landing_slot, gpu::Event prepared) { landing_.release(landing_slot, std::move(prepared)); }

  // How long take() blocked, in seconds, since the beginning.
  double blocked_seconds() const { return blocked_seconds_; }
  size_t fetched_bytes() const { return fetched_bytes_; }

 private:
  struct Pending {
    int access = 0;
    int slot = 0;
    Ticket ticket;
  };
  void issue_up_to(int access);
  void issue(int access);

  const Plan& plan_;
  const TensorStore& store_;
  Mover& mover_;
  DType compute_dtype_;
  SlotRing landing_;
  bool first_walk_ = true;
  int next_access_ = 0;
  int next_slot_ = 0;
  std::deque<Pending> pending_;
  double blocked_seconds_ = 0;
  size_t fetched_bytes_ = 0;
};

}  // namespace sluice
