#include "engine/memory/slot_ring.h"

#include <gtest/gtest.h>
#include <vector>

#include "tests/support/test_device.h"

namespace sluice {
namespace {

TEST(SlotRing, SlotsLieSideBySide) {
  std::vector<std::byte> memory(3 * 512);
  const SlotRing ring(memory.data(), 512, 3);
  EXPECT_EQ(ring.slot_count(), 3);
  EXPECT_EQ(ring.slot_bytes(), 512u);
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(ring.slot(slot), memory.data() + slot * 512);
    EXPECT_FALSE(ring.free_after(slot)) << "free from the start";
  }
  EXPECT_EQ(SlotRing().slot_count(), 0);
}

TEST(SlotRingDeathTest, KnowsItsSlots) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const SlotRing ring(nullptr, 512, 2);
  EXPECT_DEATH((void)ring.slot(2), "index");
  EXPECT_DEATH((void)ring.slot(-1), "index");
}

// The next user of a slot comes after the last one, and only in that slot.
TEST(SlotRing, NextUseComesAfterTheLast) {
  test::TestDevice host({.delay_seed = 5});
  gpu::Device& device = host.device();
  const auto memory = device.allocate(2 * 512);
  SlotRing ring(memory->data(), 512, 2);
  std::vector<std::vector<float>> got(40, std::vector<float>(128));
  {
    const auto writer = device.make_stream(gpu::StreamKind::compute, "writer");
    const auto reader = device.make_stream(gpu::StreamKind::copy_out, "reader");
    for (size_t i = 0; i < got.size(); ++i) {
      const int slot = static_cast<int>(i % 2);
      ring.wait_free(slot, *writer);
      device.ops().submit(
          *writer, gpu::Fill{gpu::View(ring.slot(slot), DType::f32, 1, 128), static_cast<float>(i)}, {});
      reader->wait(writer->record());
      device.copy_to_host(*reader, got[i].data(), ring.slot(slot), 512);
      ring.release(slot, reader->record());
    }
  }
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], std::vector<float>(128, static_cast<float>(i)));
}

TEST(SlotRing, AForgottenWaitIsAHazard) {
  test::TestDevice host;
  gpu::Device& device = host.device();
  const auto memory = device.allocate(512);
  SlotRing ring(memory->data(), 512, 1);
  std::vector<float> got(128);
  {
    const auto writer = device.make_stream(gpu::StreamKind::compute, "writer");
    const auto reader = device.make_stream(gpu::StreamKind::copy_out, "reader");
    device.copy_to_host(*reader, got.data(), ring.slot(0), 512);
    ring.release(0, reader->record());
    test::wait_unseen(reader->record());
    device.ops().submit(*writer, gpu::Fill{gpu::View(ring.slot(0), DType::f32, 1, 128), 1}, {});
  }
  EXPECT_EQ(host.take_hazards().size(), 1u);
}

}  // namespace
}  // namespace sluice
