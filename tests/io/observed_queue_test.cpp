#include "io/observed_queue.h"

#include "io/thread_queue.h"
#include "tests/contract/io_queue_contract.h"

namespace sluice {
namespace {

class Counter final : public IoObserver {
 public:
  Counter() : seen_(own_) {}
  explicit Counter(std::vector<std::string>& seen) : seen_(seen) {}
  void on_start(int slot, const IoRequest& request) override { add("start", slot, request); }
  void on_end(int slot, const IoRequest& request, const IoCompletion& completion) override {
    EXPECT_EQ(request.tag, completion.tag);
    add("end", slot, request);
  }

 private:
  void add(const std::string& what, int slot, const IoRequest& request) {
    seen_.push_back(what + " " + std::to_string(slot) + " " + std::to_string(request.tag));
  }
  std::vector<std::string> own_;
  std::vector<std::string>& seen_;
};

const auto kMake = [](const IoQueueOptions& options) -> std::unique_ptr<IoQueue> {
  std::vector<std::unique_ptr<IoObserver>> observers;
  observers.push_back(std::make_unique<Counter>());
  return std::make_unique<ObservedQueue>(std::make_unique<ThreadQueue>(options), std::move(observers));
};

INSTANTIATE_TEST_SUITE_P(Observed, IoQueueContract, testing::Values(QueueCase{"threads", kMake}),
                         queue_case_name);

INSTANTIATE_TEST_SUITE_P(Observed, IoQueueContractDeathTest, testing::Values(QueueCase{"threads", kMake}),
                         queue_case_name);

class ObservedQueueTest : public testing::Test {
 protected:
  ObservedQueueTest() : file_(File::create(folder_ / "file")), buffer_(size_t{4} * 4096, "a test") {}
  IoRequest write(uint64_t offset, uint64_t tag) {
    return {.kind = IoRequest::Kind::write,
            .descriptor = file_.descriptor(),
            .data = buffer_.data() + offset,
            .size_bytes = 4096,
            .offset = offset,
            .tag = tag};
  }
  const test::TemporaryFolder folder_;
  File file_;
  AlignedBuffer buffer_;
};

TEST_F(ObservedQueueTest, TransfersOfOneTagAreToldApart) {
  std::vector<std::string> seen;
  std::vector<std::unique_ptr<IoObserver>> observers;
  observers.push_back(std::make_unique<Counter>(seen));
  ObservedQueue queue(std::make_unique<ThreadQueue>(IoQueueOptions{.thread_count = 1}), std::move(observers));
  const std::vector<IoRequest> requests{write(0, 9), write(4096, 9)};
  queue.start(requests);
  for (const IoCompletion& completion : queue.wait(2)) EXPECT_EQ(completion.tag, 9u);
  EXPECT_EQ(seen, (std::vector<std::string>{"start 0 9", "start 1 9", "end 0 9", "end 1 9"}));
}

TEST_F(ObservedQueueTest, TracesBytesOfBothDirections) {
  Trace trace;
  trace.begin_step(3);
  {
    const TraceThread thread(&trace, "optimizer", trace_order::kHost);
    auto inner = std::make_unique<ThreadQueue>();
    std::vector<std::unique_ptr<IoObserver>> observers;
    observers.push_back(trace_transfers(&trace, *inner));
    ObservedQueue queue(std::move(inner), std::move(observers));
    const WorkScope work("write states of", "layer 2");
    const std::vector<IoRequest> writes{write(0, 0), write(4096, 1), write(8192, 2)};
    queue.start(writes);
    queue.wait(3);
  }
  for (const TraceLaneRecord& lane : trace.stop()) {
    if (!lane.name.starts_with("disk")) continue;
    EXPECT_EQ(lane.name, "disk write, optimizer, " + folder_.path().string());
    uint64_t bytes = 0;
    for (const TraceSpan& span : lane.spans) {
      EXPECT_EQ(span.name, "write states of layer 2");
      EXPECT_EQ(span.step, 3);
      bytes += span.bytes;
    }
    EXPECT_EQ(bytes, 3u * 4096);
    return;
  }
  FAIL() << "no lane";
}

}  // namespace
}  // namespace sluice
