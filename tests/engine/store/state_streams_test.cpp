#include <gtest/gtest.h>
#include <thread>

#include "engine/store/state_file.h"
#include "io/memory_queue.h"
#include "tests/support/state_trial.h"

// One state used by a thread for each kind of transfer, and one that commits, as in a step.
namespace sluice {
namespace {

TEST(StateStreams, ReadWriteAndCommitAtOnce) {
  constexpr std::array<test::BlockSize, 4> kSizes = {{{4096, 0}, {1 << 20, 0}, {256, 0}, {300 * 2048, 0}}};
  const test::TemporaryFolder folder;
  FolderLocks locks;
  const auto disk = std::make_shared<MemoryDisk>();
  std::unique_ptr<StateFile> state;
  {
    MemoryQueue queue(disk);
    state = StateFile::create(test::options_in(folder, 2), StateLayout(test::model_of_sizes(kSizes)), locks,
                              {queue});
    for (int32_t i = 0; i < 4; ++i) test::write_block(*state, queue, BlockId{i}, 0, 1);
  }
  std::vector<uint8_t> slots(4, 0);
  for (uint64_t step = 1; step < 6; ++step) {
    // The newest versions are committed and read by two threads, while a third writes the next ones.
    const int from = static_cast<int>((step + 1) % 2), to = 1 - from;
    std::atomic<int> held = 0;
    const auto read_all = [&] {
      MemoryQueue queue(disk, {.seed = step});
      for (int32_t i = 0; i < 4; ++i)
        held += test::block_holds(*state, queue, BlockId{i}, from, step) ? 1 : 0;
    };
    if (step == 1) state->commit({.applied_step = 0}, slots);
    std::thread fetch(read_all), states(read_all);
    std::thread write([&] {
      MemoryQueue queue(disk, {.seed = step + 100});
      for (int32_t i = 0; i < 4; ++i) test::write_block(*state, queue, BlockId{i}, to, step + 1);
    });
    state->commit({.applied_step = static_cast<int64_t>(step)},
                  std::vector<uint8_t>(4, static_cast<uint8_t>(from)));
    fetch.join();
    states.join();
    write.join();
    EXPECT_EQ(held, 8) << step;
  }
}

}  // namespace
}  // namespace sluice
