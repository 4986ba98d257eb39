#include "io/observed_queue.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace sluice {
namespace {

class TransferLanes final : public IoObserver {
 public:
  TransferLanes(Trace& trace, const IoQueue& queue)
      : trace_(trace), started_(static_cast<size_t>(queue.capacity())) {}

  void on_start(int slot, const IoRequest&) override {
    started_[static_cast<size_t>(slot)] = {this_thread_label(), trace_now_ns()};
  }
  void on_end(int slot, const IoRequest& request, const IoCompletion& completion) override {
    const Started& started = started_[static_cast<size_t>(slot)];
    const bool failed = completion.error_number != 0;
    lane_of(request).add(failed ? WorkLabel{"failed transfer", {}, started.label.step} : started.label,
                         "transfer", started.begin_ns, trace_now_ns(), failed ? 0 : request.size_bytes);
  }

 private:
  struct Started {
    WorkLabel label;
    int64_t begin_ns = 0;
  };

  // "disk read, optimizer, /mnt/nvme0/sluice".
  TraceLane& lane_of(const IoRequest& request) {
    TraceLane*& lane = lanes_[{request.descriptor, request.kind}];
    if (lane == nullptr) {
      std::string name = request.kind == IoRequest::Kind::read ? "disk read, " : "disk write, ";
      if (const TraceLane* thread = this_thread_lane()) name += thread->name() + ", ";
      name += std::filesystem::path(descriptor_path(request.descriptor)).parent_path();
      lane = &trace_.add_lane(std::move(name), trace_order::kDisk);
    }
    return *lane;
  }

  Trace& trace_;
  std::vector<Started> started_;  // by slot
  std::map<std::pair<int, IoRequest::Kind>, TraceLane*> lanes_;
};

}  // namespace

ObservedQueue::ObservedQueue(std::unique_ptr<IoQueue> inner,
                             std::vector<std::unique_ptr<IoObserver>> observers)
    : observers_(std::move(observers)),
      requests_(static_cast<size_t>(inner->capacity())),
      inner_(std::move(inner)) {
  for (int slot = capacity(); slot-- > 0;) free_slots_.push_back(slot);
}

void ObservedQueue::start(std::span<const IoRequest> requests) {
  SLUICE_CHECK(requests.size() <= free_slots_.size());
  tagged_.assign(requests.begin(), requests.end());
  for (IoRequest& request : tagged_) {
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    requests_[static_cast<size_t>(slot)] = request;
    for (const auto& observer : observers_) observer->on_start(slot, request);
    request.tag = static_cast<uint64_t>(slot);
  }
  inner_->start(tagged_);
}

std::span<const IoCompletion> ObservedQueue::wait(int least) {
  std::span<const IoCompletion> ended;
  if (least > 0) {
    const TraceWait wait("wait for disk");
    ended = inner_->wait(least);
  } else {
    ended = inner_->wait(least);
  }
  seen_.assign(ended.begin(), ended.end());
  for (IoCompletion& completion : seen_) {
    const int slot = static_cast<int>(completion.tag);
    const IoRequest& request = requests_[static_cast<size_t>(slot)];
    completion.tag = request.tag;
    for (const auto& observer : observers_) observer->on_end(slot, request, completion);
    free_slots_.push_back(slot);
  }
  return seen_;
}

std::unique_ptr<IoObserver> trace_transfers(Trace* trace, const IoQueue& queue) {
  if (trace == nullptr) return nullptr;
  return std::make_unique<TransferLanes>(*trace, queue);
}

std::string descriptor_path(int descriptor) {
  std::error_code failure;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), failure);
  return failure ? "descriptor " + std::to_string(descriptor) : path.string();
}

}  // namespace sluice
