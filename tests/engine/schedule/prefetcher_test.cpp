#include "engine/schedule/prefetcher.h"

#include <gtest/gtest.h>
#include <mutex>
#include <vector>

#include "tests/support/forwarding_device.h"
#include "tests/support/test_device.h"

namespace sluice {
namespace {

constexpr int kBlockCount = 4;
constexpr int64_t kRows = 3, kCols = 200;  // 600 elements, 768 with padding

ModelSpec model() {
  ModelSpec model;
  for (int32_t block = 0; block < kBlockCount; ++block) {
    const std::string name = "block " + std::to_string(block);
    model.tensors.push_back({.name = name, .rows = kRows, .cols = kCols});
    model.blocks.push_back({.name = name, .parts = {{TensorId{block}, 0, kRows}}});
  }
  return model;
}

// Notes the copies in, in the order in which they are enqueued.
class CopyLog final : public test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  struct Copy {
    const std::byte* device;
    const void* host;
    size_t size_bytes;
  };
  void copy_to_device(gpu::Stream& stream, std::byte* device, const void* host, size_t size_bytes) override {
    {
      const std::lock_guard lock(mutex_);
      copies_.push_back({device, host, size_bytes});
    }
    ForwardingDevice::copy_to_device(stream, device, host, size_bytes);
  }
  std::vector<Copy> copies() {
    const std::lock_guard lock(mutex_);
    return copies_;
  }

 private:
  std::mutex mutex_;
  std::vector<Copy> copies_;
};

struct Case {
  int distance;
  DType dtype;
  uint64_t delay_seed;
};

class PrefetcherTest : public testing::TestWithParam<Case> {
 protected:
  PrefetcherTest() {
    for (int block = 0; block < kBlockCount; ++block) fill(block, static_cast<float>(block + 1));
    for (const int block : {0, 1, 2, 3, 3, 2, 1, 0}) request_.accesses.push_back({.block = BlockId{block}});
    request_.prefetch_distance = GetParam().distance;
    for (int block = 0; block < kBlockCount; ++block) {
      request_.blocks.push_back({.name = "",
                                 .fetch_bytes = store_.layout(BlockId{block}).fetch_bytes(GetParam().dtype),
                                 .plain_bytes = 4096,
                                 .changes = true});
    }
  }

  void fill(int block, float value) {
    const std::vector<float> values(kRows * kCols, value);
    store_.write_rows(TensorId{block}, 0, kRows, values.data());
  }
  void make_prefetcher() {
    plan_ = make_plan(request_);
    memory_ = device_.allocate(plan_.peak_bytes(Tier::device));
    prefetcher_ = std::make_unique<Prefetcher>(plan_, store_, mover_, GetParam().dtype, memory_->data());
  }
  // What a lease would do: read what landed on the compute stream, to the host. The high half of element 0.
  void use(const Prefetcher::Landed& landed, uint16_t& high, bool forget_release = false) {
    compute_->wait(landed.copied);
    const BlockLayout& layout = store_.layout(BlockId{0});
    const size_t high_offset = layout.low_bytes() - layout.fetch_offset(GetParam().dtype);
    host_.device().copy_to_host(*compute_, &high, landed.data + high_offset, 2);
    if (!forget_release) prefetcher_->release(landed.slot, compute_->record());
  }
  static uint16_t bits(int value) { return split(static_cast<float>(value)).high.bits; }

  test::TestDevice host_{{.delay_seed = GetParam().delay_seed}};
  CopyLog device_{host_.device()};
  TierBudget budget_{Tier::host};
  TensorStore store_{model(), device_, budget_, false};
  PlanRequest request_;
  Plan plan_;
  std::unique_ptr<gpu::DeviceMemory> memory_;
  std::unique_ptr<gpu::Stream> updates_ = device_.make_stream(gpu::StreamKind::cpu, "updates");
  std::unique_ptr<gpu::Stream> compute_ = device_.make_stream(gpu::StreamKind::compute, "compute");
  Mover mover_{device_};
  std::unique_ptr<Prefetcher> prefetcher_;
};

TEST_P(PrefetcherTest, CopiesInTheOrderOfTheWalkThroughItsSlots) {
  make_prefetcher();
  constexpr int kWalks = 3;
  std::vector<uint16_t> seen(kWalks * 8);
  for (int walk = 0; walk < kWalks; ++walk) {
    prefetcher_->begin_walk(walk == 0);
    for (int access = 0; access < 8; ++access) {
      EXPECT_TRUE(prefetcher_->fetches(access));
      use(prefetcher_->take(access), seen[static_cast<size_t>(walk * 8 + access)]);
    }
  }
  compute_->record().wait();
  const std::vector<CopyLog::Copy> copies = device_.copies();
  ASSERT_EQ(copies.size(), seen.size());
  const BlockLayout& layout = store_.layout(BlockId{0});
  for (size_t i = 0; i < copies.size(); ++i) {
    const BlockId block = plan_.accesses[i % 8].access.block;
    EXPECT_EQ(copies[i].host, store_.weights(block) + layout.fetch_offset(GetParam().dtype)) << i;
    EXPECT_EQ(copies[i].size_bytes, layout.fetch_bytes(GetParam().dtype));
    const size_t slot = i % static_cast<size_t>(GetParam().distance + 1);
    EXPECT_EQ(copies[i].device, memory_->data() + slot * plan_.landing_slot_bytes) << i;
    EXPECT_EQ(seen[i], bits(block.value + 1)) << i;
  }
  EXPECT_EQ(prefetcher_->fetched_bytes(), kWalks * plan_.copy_in_bytes_per_walk);
  EXPECT_GE(prefetcher_->blocked_seconds(), 0.0);
}

TEST_P(PrefetcherTest, KeepsAsManyInFlightAsTheDistanceSays) {
  make_prefetcher();
  const size_t bytes = store_.layout(BlockId{0}).fetch_bytes(GetParam().dtype);
  const size_t distance = static_cast<size_t>(GetParam().distance);
  uint16_t seen = 0;
  prefetcher_->begin_walk(true);
  EXPECT_EQ(prefetcher_->fetched_bytes(), distance * bytes);
  for (size_t access = 0; access < 8; ++access) {
    use(prefetcher_->take(static_cast<int>(access)), seen);
    EXPECT_EQ(prefetcher_->fetched_bytes(), std::min(access + 1 + distance, size_t{8}) * bytes);
  }
  compute_->record().wait();
}

// Each walk sees what the updates after the walk before have written, however late they run.
TEST_P(PrefetcherTest, WaitsForEachBlocksUpdate) {
  make_prefetcher();
  constexpr int kWalks = 4;
  std::vector<uint16_t> seen(kWalks * 8);
  for (int walk = 0; walk < kWalks; ++walk) {
    prefetcher_->begin_walk(walk == 0);
    for (int access = 0; access < 8; ++access) {
      use(prefetcher_->take(access), seen[static_cast<size_t>(walk * 8 + access)]);
    }
    updates_->wait(compute_->record());
    for (int block = 0; block < kBlockCount; ++block) {
      updates_->run(
          {"update",
           {gpu::writes(store_.weights(BlockId{block}), store_.layout(BlockId{block}).weight_bytes())},
           [this, block, walk] { fill(block, static_cast<float>(100 * (walk + 1) + block + 1)); }});
      store_.set_version(BlockId{block}, updates_->record());
    }
  }
  updates_->record().wait();
  for (size_t i = 0; i < seen.size(); ++i) {
    const int walk = static_cast<int>(i) / 8;
    EXPECT_EQ(seen[i], bits(100 * walk + plan_.accesses[i % 8].access.block.value + 1)) << i;
  }
}

TEST_P(PrefetcherTest, KeptBlocksAreFetchedOnceAWalk) {
  request_.keep_weights = true;
  make_prefetcher();
  std::vector<uint16_t> seen(2 * 8);
  for (int walk = 0; walk < 2; ++walk) {
    prefetcher_->begin_walk(walk == 0);
    for (int access = 0; access < 8; ++access) {
      EXPECT_EQ(prefetcher_->fetches(access), access < 4);
      if (prefetcher_->fetches(access))
        use(prefetcher_->take(access), seen[static_cast<size_t>(walk * 8 + access)]);
    }
  }
  compute_->record().wait();
  EXPECT_EQ(device_.copies().size(), 8u);
  EXPECT_EQ(prefetcher_->fetched_bytes(), 2 * plan_.copy_in_bytes_per_walk);
}

TEST_P(PrefetcherTest, ASlotThatNobodyReleasedIsAHazard) {
  make_prefetcher();
  std::vector<uint16_t> seen(8);
  prefetcher_->begin_walk(true);
  for (int access = 0; access < 8; ++access) {
    use(prefetcher_->take(access), seen[static_cast<size_t>(access)], true);
    test::wait_unseen(compute_->record());
  }
  compute_->record().wait();
  EXPECT_EQ(host_.take_hazards().size(), 8u - static_cast<size_t>(GetParam().distance + 1));
}

INSTANTIATE_TEST_SUITE_P(Walks, PrefetcherTest,
                         testing::Values(Case{0, DType::f32, 1}, Case{1, DType::f32, 2},
                                         Case{2, DType::bf16, 3}, Case{3, DType::bf16, 4},
                                         Case{7, DType::f32, 5}),
                         [](const auto& parameters) {
                           return "distance" + std::to_string(parameters.param.distance) + "_" +
                                  std::string(name(parameters.param.dtype));
                         });

TEST(PrefetcherDeathTest, AWalkEndsBeforeTheNext) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        test::TestDevice host;
        TierBudget budget(Tier::host);
        const TensorStore store(model(), host.device(), budget, false);
        const Plan plan =
            make_plan({.blocks = {{.name = "", .fetch_bytes = 3072}}, .accesses = {{.block = BlockId{0}}}});
        const auto memory = host.device().allocate(plan.peak_bytes(Tier::device));
        Mover mover(host.device());
        Prefetcher prefetcher(plan, store, mover, DType::f32, memory->data());
        prefetcher.begin_walk(true);
        prefetcher.begin_walk(false);
      },
      "before all its accesses");
}

}  // namespace
}  // namespace sluice
