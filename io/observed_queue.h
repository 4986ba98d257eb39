#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/base/trace.h"
#include "engine/base/work_label.h"
#include "io/io_queue.h"

namespace sluice {

// Learns of every transfer of one queue, on the queue's thread. `slot`, below the queue's capacity, is the
// transfer's own from its start to its end.
class IoObserver {
 public:
  virtual ~IoObserver() = default;
  // Just before it begins.
  virtual void on_start(int slot, const IoRequest& request) = 0;
  virtual void on_end(int slot, const IoRequest& request, const IoCompletion& completion) = 0;
};

// A queue that tells observers what it does, and records waits in the lane of its thread. Else as the one
// inside. Observers outlive the queue inside, so what is still in flight when this is destroyed stays known
// to them for as long as its destructor waits for it.
class ObservedQueue final : public IoQueue {
 public:
  ObservedQueue(std::unique_ptr<IoQueue> inner, std::vector<std::unique_ptr<IoObserver>> observers);

  std::string_view name() const override { return inner_->name(); }
  int capacity() const override { return inner_->capacity(); }
  int in_flight() const override { return inner_->in_flight(); }
  void start(std::span<const IoRequest> requests) override;
  std::span<const IoCompletion> wait(int least) override;

 private:
  const std::vector<std::unique_ptr<IoObserver>> observers_;
  std::vector<IoRequest> requests_;  // by slot, as the caller gave them
  std::vector<int> free_slots_;
  std::vector<IoRequest> tagged_;  // scratch: a request's tag is its slot
  std::vector<IoCompletion> seen_;
  const std::unique_ptr<IoQueue> inner_;
};

// Who is to learn of a queue's transfers.
using IoObservers = std::function<std::vector<std::unique_ptr<IoObserver>>(const IoQueue&)>;

// One lane a file and direction in which this queue transfers: busy from the start of a transfer, or the end
// of the one before it, until its own end was seen. Null without a trace.
std::unique_ptr<IoObserver> trace_transfers(Trace* trace, const IoQueue& queue);

// The path behind a descriptor; "descriptor N" where that cannot be found out.
std::string descriptor_path(int descriptor);

}  // namespace sluice
