#include "engine/schedule/mover.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/trace.h"

namespace sluice {

bool Ticket::enqueued() const {
  return enqueued_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

gpu::Event Ticket::wait_enqueued() const {
  const auto begin = std::chrono::steady_clock::now();
  try {
    const Enqueued& enqueued = enqueued_.get();
    const auto end = std::chrono::steady_clock::now();
    const auto host_ready = std::clamp(enqueued.host_ready, begin, end);
    const auto disk_begin = std::clamp(enqueued.disk_begin, begin, host_ready);
    const auto seconds = [](auto duration) { return std::chrono::duration<double>(duration).count(); };
    waits_->host_seconds += seconds(disk_begin - begin);
    waits_->disk_seconds += seconds(host_ready - disk_begin);
    waits_->enqueue_seconds += seconds(end - host_ready);
    if (TraceLane* lane = this_thread_lane()) {
      const auto wait = [&](std::string_view what, auto from, auto to) {
        lane->add_wait(what, trace_time_ns(from), trace_time_ns(to));
      };
      wait("wait for the update", begin, disk_begin);
      wait("wait for disk", disk_begin, host_ready);
      wait("wait for the mover", host_ready, end);
    }
    return enqueued.copied;
  } catch (const std::future_error&) {
    // The lane dropped the fetch because something before it failed; its next event says what.
    lane_->record().wait();
    throw Error(ErrorKind::runtime, "a copy to the device was dropped");
  }
}

Mover::Mover(gpu::Device& device)
    : device_(device),
      copy_in_(device.make_stream(gpu::StreamKind::copy_in, "copy in")),
      copy_out_(device.make_stream(gpu::StreamKind::copy_out, "copy out")),
      lane_(device.make_stream(gpu::StreamKind::cpu, "mover")) {}

Ticket Mover::fetch(Fetch fetch) {
  for (const gpu::Event& event : fetch.host_ready) lane_->wait(event);
  if (fetch.gather) lane_->run(std::move(*fetch.gather));
  const gpu::Event ready = lane_->record();
  auto promise = std::make_shared<std::promise<Ticket::Enqueued>>();
  Ticket ticket(promise->get_future().share(), lane_.get(), &waits_);
  lane_->run(
      {.name = "enqueue copy in",
       .accesses = {},
       .body = [this, promise = std::move(promise), ready, fetch = std::move(fetch)] {
         const auto host_ready = std::chrono::steady_clock::now();
         ready
             .wait();  // done: the lane's own order; it tells whoever watches that this thread comes after it
         if (fetch.device_free) copy_in_->wait(*fetch.device_free);
         device_.copy_to_device(*copy_in_, fetch.device, fetch.host, fetch.size_bytes);
         promise->set_value(
             {copy_in_->record(), fetch.disk_begin ? *fetch.disk_begin : host_ready, host_ready});
       }});
  return ticket;
}

gpu::Event Mover::send(const gpu::Event& after, void* host, const std::byte* device, size_t size_bytes) {
  copy_out_->wait(after);
  device_.copy_to_host(*copy_out_, host, device, size_bytes);
  return copy_out_->record();
}

}  // namespace sluice
