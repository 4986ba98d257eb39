#include "apps/finetune/write_count.h"

#include <utility>

namespace sluice::finetune {
namespace {

class CountedQueue final : public IoQueue {
 public:
  CountedQueue(std::unique_ptr<IoQueue> queue, WriteCount& count) : queue_(std::move(queue)), count_(count) {}
  std::string_view name() const override { return queue_->name(); }
  int capacity() const override { return queue_->capacity(); }
  int in_flight() const override { return queue_->in_flight(); }
  void start(std::span<const IoRequest> requests) override {
    uint64_t bytes = 0;
    for (const IoRequest& request : requests)
      if (request.kind == IoRequest::Kind::write) bytes += request.size_bytes;
    count_.add(bytes);
    queue_->start(requests);
  }
  std::span<const IoCompletion> wait(int least) override { return queue_->wait(least); }

 private:
  const std::unique_ptr<IoQueue> queue_;
  WriteCount& count_;
};

}  // namespace

std::unique_ptr<IoQueue> count_writes(std::unique_ptr<IoQueue> queue, WriteCount& count) {
  return std::make_unique<CountedQueue>(std::move(queue), count);
}

}  // namespace sluice::finetune
