#include "io/thread_queue.h"

#include "tests/contract/io_queue_contract.h"

namespace sluice {
namespace {

const auto kMake = [](const IoQueueOptions& options) -> std::unique_ptr<IoQueue> {
  return std::make_unique<ThreadQueue>(options);
};
const auto kMakeOneThread = [](IoQueueOptions options) -> std::unique_ptr<IoQueue> {
  options.thread_count = 1;
  return std::make_unique<ThreadQueue>(options);
};

INSTANTIATE_TEST_SUITE_P(Threads, IoQueueContract,
                         testing::Values(QueueCase{"four", kMake}, QueueCase{"one", kMakeOneThread}),
                         queue_case_name);
INSTANTIATE_TEST_SUITE_P(Threads, IoQueueContractDeathTest, testing::Values(QueueCase{"four", kMake}),
                         queue_case_name);

}  // namespace
}  // namespace sluice
