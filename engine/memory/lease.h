#pragma once

#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "gpu/ops/linear.h"
#include "gpu/stream.h"

namespace sluice {

// A block's weights in device memory, as an access offers them.
struct PreparedBlock {
  struct Linear {
    gpu::PackedWeight forward;  // data is null where the access did not ask for the layout
    gpu::PackedWeight backward;
  };
  std::vector<Linear> linears;         // by BlockSpec::linears
  std::vector<gpu::View> plain_parts;  // by part; empty where the part is in a LinearUse

  const gpu::PackedWeight& forward(int linear) const { return checked(at(linear).forward); }
  const gpu::PackedWeight& backward(int linear) const { return checked(at(linear).backward); }
  // (rows, cols) in the compute dtype.
  const gpu::View& plain(int part) const {
    const gpu::View& view = plain_parts.at(static_cast<size_t>(part));
    SLUICE_CHECK(view.data != nullptr, "this part is used as a matmul weight");
    return view;
  }

 private:
  const Linear& at(int linear) const { return linears.at(static_cast<size_t>(linear)); }
  static const gpu::PackedWeight& checked(const gpu::PackedWeight& weight) {
    SLUICE_CHECK(weight.data != nullptr, "the access did not ask for this layout");
    return weight;
  }
};

// What gets a lease's memory back.
class LeaseOwner {
 public:
  virtual ~LeaseOwner() = default;
  // `last_use` is recorded after the last op that was submitted under the lease of the walk's access.
  virtual void release(int access, gpu::Event last_use) = 0;
};

// The only way to touch a block's weights: a move-only pin. Ops under it go to its stream; the destructor
// records there, and the memory is used again after that point. Used by the trainer's thread; must end before
// the engine.
class Lease {
 public:
  Lease(LeaseOwner& owner, int access, gpu::Stream& stream, PreparedBlock block)
      : owner_(&owner), access_(access), stream_(&stream), block_(std::move(block)) {}
  Lease(Lease&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        access_(other.access_),
        stream_(other.stream_),
        block_(std::move(other.block_)) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (owner_ != nullptr) owner_->release(access_, stream_->record());
  }

  // Hands the lease to another stream: records on the old one, waits on the new one.
  void on(gpu::Stream& stream) {
    if (&stream == stream_) return;
    stream.wait(stream_->record());
    stream_ = &stream;
  }
  const PreparedBlock& operator*() const { return block_; }
  const PreparedBlock* operator->() const { return &block_; }

 private:
  LeaseOwner* owner_;
  int access_;
  gpu::Stream* stream_;
  PreparedBlock block_;
};

}  // namespace sluice
