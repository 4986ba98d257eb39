#include "engine/memory/lease.h"

#include <gtest/gtest.h>
#include <optional>
#include <type_traits>
#include <vector>

#include "tests/support/test_device.h"

namespace sluice {
namespace {

static_assert(!std::is_copy_constructible_v<Lease> && std::is_move_constructible_v<Lease>);

class Owner final : public LeaseOwner {
 public:
  void release(int slot, gpu::Event last_use) override {
    slots.push_back(slot);
    last = std::move(last_use);
  }
  std::vector<int> slots;
  std::optional<gpu::Event> last;
};

class LeaseTest : public testing::Test {
 protected:
  LeaseTest() : memory_(host_.device().allocate(1024)), x_(memory_->data(), DType::f32, 1, 256) {}
  void fill(gpu::Stream& stream, float value) {
    host_.device().ops().submit(stream, gpu::Fill{x_, value}, {});
  }

  test::TestDevice host_{{.delay_seed = 3}};
  std::unique_ptr<gpu::DeviceMemory> memory_;
  gpu::View x_;
  Owner owner_;
};

TEST_F(LeaseTest, ReleasesOnceWhenItEnds) {
  const auto stream = host_.device().make_stream(gpu::StreamKind::compute, "compute");
  {
    Lease first(owner_, 4, *stream, {});
    const Lease second = std::move(first);
    EXPECT_TRUE(owner_.slots.empty());
  }
  EXPECT_EQ(owner_.slots, std::vector<int>{4});
}

// Whoever writes the memory after the release comes after all streams that the lease has been on.
TEST_F(LeaseTest, ReleaseComesAfterEveryStreamItWasOn) {
  gpu::Device& device = host_.device();
  std::vector<float> got(256);
  {
    const auto first = device.make_stream(gpu::StreamKind::compute, "first");
    const auto second = device.make_stream(gpu::StreamKind::compute, "second");
    const auto third = device.make_stream(gpu::StreamKind::compute, "third");
    const auto writer = device.make_stream(gpu::StreamKind::copy_in, "writer");
    {
      Lease lease(owner_, 0, *first, {});
      fill(*first, 1);
      lease.on(*second);
      device.ops().submit(*second, gpu::Add{x_, x_, x_}, {});
      lease.on(*second);  // where it is already
      device.ops().submit(*second, gpu::Add{x_, x_, x_}, {});
      lease.on(*third);
      device.copy_to_host(*third, got.data(), x_.data, 1024);
    }
    writer->wait(*owner_.last);
    const std::vector<float> next(256, 9);
    device.copy_to_device(*writer, x_.data, next.data(), 1024);
    writer->record().wait();
  }
  EXPECT_EQ(got, std::vector<float>(256, 4));
}

TEST_F(LeaseTest, WithoutTheHandOverThereIsAHazard) {
  {
    const auto first = host_.device().make_stream(gpu::StreamKind::compute, "first");
    const auto second = host_.device().make_stream(gpu::StreamKind::compute, "second");
    const Lease lease(owner_, 0, *first, {});
    fill(*first, 1);
    test::wait_unseen(first->record());
    fill(*second, 2);
  }
  EXPECT_EQ(host_.take_hazards().size(), 1u);
}

TEST(PreparedBlockDeathTest, OffersOnlyWhatTheAccessAskedFor) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  std::byte data{};
  PreparedBlock block;
  block.linears.push_back({.forward = {.data = &data}, .backward = {}});
  block.plain_parts = {gpu::View(), gpu::View(&data, DType::f32, 1, 1)};
  EXPECT_EQ(block.forward(0).data, &data);
  EXPECT_EQ(block.plain(1).data, &data);
  EXPECT_DEATH((void)block.backward(0), "did not ask");
  EXPECT_DEATH((void)block.plain(0), "matmul weight");
}

}  // namespace
}  // namespace sluice
