#include "engine/schedule/prefetcher.h"

#include <algorithm>
#include <chrono>

#include "engine/base/error.h"
#include "engine/base/work_label.h"

namespace sluice {

Prefetcher::Prefetcher(const Plan& plan, const TensorStore& store, Mover& mover, DType compute_dtype,
                       std::byte* landing, DiskReader* reader, std::byte* staging)
    : plan_(plan),
      store_(store),
      mover_(mover),
      compute_dtype_(compute_dtype),
      landing_(landing, plan.landing_slot_bytes, plan.landing_slot_count),
      reader_(reader),
      staging_(staging, plan.staging_slot_bytes, plan.staging_slot_count) {}

void Prefetcher::begin_walk(bool first_walk) {
  SLUICE_CHECK(pending_.empty(), "a walk ended before all its accesses were taken");
  first_walk_ = first_walk;
  next_access_ = 0;
  next_read_ = 0;
  issue_up_to(plan_.prefetch_distance - 1);
}

bool Prefetcher::fetches(int access) const {
  const PlannedAccess& planned = plan_.accesses.at(static_cast<size_t>(access));
  return first_walk_ ? planned.fetch : planned.fetch_again;
}

void Prefetcher::issue_up_to(int access) {
  const int end = static_cast<int>(plan_.accesses.size());
  for (; next_read_ < std::min(access + plan_.read_ahead + 1, end); ++next_read_) {
    if (fetches(next_read_) && plan_.home(block_of(next_read_)).weights == Tier::disk) read(next_read_);
  }
  for (; next_access_ < std::min(access + 1, end); ++next_access_) {
    if (fetches(next_access_)) issue(next_access_);
  }
}

void Prefetcher::read(int access) {
  const BlockId block = block_of(access);
  const WorkScope work("read weights of", store_.model().block(block).name);
  const int slot = next_staging_slot_;
  next_staging_slot_ = (next_staging_slot_ + 1) % staging_.slot_count();
  staging_.wait_free(slot, reader_->lane());
  if (const auto& ready = store_.version_ready(block)) reader_->after(*ready);
  const auto begin = std::make_shared<std::chrono::steady_clock::time_point>();
  reads_.push_back({access, slot, begin, reader_->read_weights(block, staging_.slot(slot), begin)});
}

void Prefetcher::issue(int access) {
  const BlockId block = block_of(access);
  const WorkScope work("in", store_.model().block(block).name);
  const BlockLayout& layout = store_.layout(block);
  const int slot = next_slot_;
  next_slot_ = (next_slot_ + 1) % landing_.slot_count();
  Mover::Fetch fetch{.device = landing_.slot(slot),
                     .host = nullptr,
                     .size_bytes = layout.fetch_bytes(compute_dtype_),
                     .host_ready = {},
                     .device_free = landing_.free_after(slot),
                     .gather = {}};
  int staging_slot = -1;
  if (store_.home(block).weights == Tier::disk) {
    SLUICE_CHECK(!reads_.empty() && reads_.front().access == access);
    staging_slot = reads_.front().slot;
    fetch.host = staging_.slot(staging_slot);
    fetch.host_ready.push_back(reads_.front().done);
    fetch.disk_begin = reads_.front().begin;
    reads_.pop_front();
  } else {
    fetch.host = store_.weights(block) + layout.fetch_offset(compute_dtype_);
    if (const auto& ready = store_.version_ready(block)) fetch.host_ready.push_back(*ready);
  }
  fetched_bytes_ += fetch.size_bytes;
  pending_.push_back({access, slot, staging_slot, mover_.fetch(std::move(fetch))});
}

Prefetcher::Landed Prefetcher::take(int access) {
  issue_up_to(access + plan_.prefetch_distance);
  SLUICE_CHECK(!pending_.empty() && pending_.front().access == access);
  const Pending next = std::move(pending_.front());
  pending_.pop_front();
  const auto begin = std::chrono::steady_clock::now();
  gpu::Event copied = next.ticket.wait_enqueued();
  blocked_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (next.staging_slot >= 0) staging_.release(next.staging_slot, copied);
  return {landing_.slot(next.slot), next.slot, std::move(copied)};
}

}  // namespace sluice
