#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/device.h"

namespace sluice {

// How long Ticket::wait_enqueued has blocked.
struct FetchWaits {
  double host_seconds = 0;     // until the host tier had the bytes, or a drive began to read them
  double disk_seconds = 0;     // until a drive had read them
  double enqueue_seconds = 0;  // from there on
};

// When a drive began to read: written by the lane that reads, before the event of what it read.
using DiskBegin = std::shared_ptr<std::chrono::steady_clock::time_point>;

// Says when a fetch has been put into the copy stream's order. Waited for by the thread that asked the mover.
class Ticket {
 public:
  struct Enqueued {
    gpu::Event copied;
    std::chrono::steady_clock::time_point disk_begin;
    std::chrono::steady_clock::time_point host_ready;
  };
  Ticket() = default;
  Ticket(std::shared_future<Enqueued> enqueued, gpu::Stream* lane, FetchWaits* waits)
      : enqueued_(std::move(enqueued)), lane_(lane), waits_(waits) {}
  bool enqueued() const;
  // Blocks until the copy is enqueued, never until it is done. Throws what kept the mover from enqueueing it.
  gpu::Event wait_enqueued() const;

 private:
  std::shared_future<Enqueued> enqueued_;
  gpu::Stream* lane_ = nullptr;
  FetchWaits* waits_ = nullptr;
};

// Copies between the host and the device tier. Copies in may have to wait for the host first (an update of
// the weights), which a device stream must not: so a lane of the mover's own waits, and then enqueues the
// copy. Copies out need no such lane. Asked by one thread.
class Mover {
 public:
  explicit Mover(gpu::Device& device);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  struct Fetch {
    std::byte* device = nullptr;
    const std::byte* host = nullptr;
    size_t size_bytes = 0;
    std::vector<gpu::Event> host_ready;     // the bytes are there after these
    std::optional<gpu::Event> device_free;  // and may be overwritten after this
    std::optional<gpu::Task> gather;        // host work that puts them there, after host_ready
    DiskBegin disk_begin = {};              // where a drive reads them
  };
  Ticket fetch(Fetch fetch);

  // Copies to the host what `after` has made, in the order of these calls. Returns the event of the copy's
  // end.
  gpu::Event send(const gpu::Event& after, void* host, const std::byte* device, size_t size_bytes);
  // Waits until all that was sent has arrived; throws what it met.
  void wait_sent() { copy_out_->record().wait(); }
  // What is sent from here on overwrites host memory that is in use until `event`.
  void send_after(const gpu::Event& event) { copy_out_->wait(event); }
  // Of the caller's thread, since the beginning.
  const FetchWaits& fetch_waits() const { return waits_; }

 private:
  gpu::Device& device_;
  FetchWaits waits_;
  std::unique_ptr<gpu::Stream> copy_in_;   // submitted to by the lane's thread only
  std::unique_ptr<gpu::Stream> copy_out_;  // submitted to by the caller's thread only
  std::unique_ptr<gpu::Stream> lane_;
};

}  // namespace sluice
