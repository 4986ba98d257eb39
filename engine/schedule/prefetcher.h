#pragma once

#include <deque>
#include <functional>

#include "engine/memory/slot_ring.h"
#include "engine/memory/tensor_store.h"
#include "engine/schedule/disk_reader.h"
#include "engine/schedule/mover.h"
#include "engine/schedule/plan.h"

namespace sluice {

// Keeps the copies of the plan's next accesses in flight: when access i is asked for, those up to i +
// distance have been handed to the mover. Each passes through a landing slot, free again once the access
// before it in that slot is prepared. Blocks on disk are read into a staging slot of the host tier first,
// `read_ahead` accesses earlier still; the slot is free again when the copy out of it has ended. Used by the
// trainer's thread.
class Prefetcher {
 public:
  // `landing` is the device memory of the plan's landing slots, `staging` the host memory of its staging
  // slots; `reader` may be null where the plan has none.
  Prefetcher(const Plan& plan, const TensorStore& store, Mover& mover, DType compute_dtype,
             std::byte* landing, DiskReader* reader = nullptr, std::byte* staging = nullptr);

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
  struct Read {
    int access = 0;
    int slot = 0;
    DiskBegin begin;
    gpu::Event done;
  };
  struct Pending {
    int access = 0;
    int slot = 0;
    int staging_slot = -1;
    Ticket ticket;
  };
  void issue_up_to(int access);
  void issue(int access);
  void read(int access);
  BlockId block_of(int access) const { return plan_.accesses[static_cast<size_t>(access)].access.block; }

  const Plan& plan_;
  const TensorStore& store_;
  Mover& mover_;
  DType compute_dtype_;
  SlotRing landing_;
  DiskReader* reader_;
  SlotRing staging_;
  bool first_walk_ = true;
  int next_access_ = 0;
  int next_slot_ = 0;
  int next_read_ = 0;
  int next_staging_slot_ = 0;
  std::deque<Read> reads_;
  std::deque<Pending> pending_;
  double blocked_seconds_ = 0;
  size_t fetched_bytes_ = 0;
};

}  // namespace sluice
