#include "engine/memory/host_arena.h"

#include <algorithm>
#include <cstdint>
#include <gtest/gtest.h>
#include <span>

#include "tests/support/expect_error.h"
#include "tests/support/forwarding_device.h"
#include "tests/support/test_device.h"

namespace sluice {
namespace {

// Counts what is registered, or refuses it.
class RegisteringDevice final : public test::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<gpu::HostRegistration> register_host_memory(void* data, size_t size_bytes) override {
    if (refuse) throw Error(ErrorKind::resource, "cudaHostRegister: out of memory");
    struct Counted final : gpu::HostRegistration {
      explicit Counted(size_t& count, size_t size) : registered(count), size_bytes(size) {
        registered += size;
      }
      ~Counted() override { registered -= size_bytes; }
      size_t& registered;
      size_t size_bytes;
    };
    begin = data;
    return std::make_unique<Counted>(registered_bytes, size_bytes);
  }
  bool refuse = false;
  void* begin = nullptr;
  size_t registered_bytes = 0;
};

class HostArenaTest : public testing::Test {
 protected:
  test::TestDevice host_;
  RegisteringDevice device_{host_.device()};
};

TEST_F(HostArenaTest, IsZeroAlignedCountedAndRegistered) {
  TierBudget budget(Tier::host);
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{4097}, (size_t{2} << 20) - 1, size_t{5} << 20}) {
    const HostArena arena(budget, device_, size, "weights");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % (size_t{2} << 20), 0u);
    EXPECT_EQ(arena.size_bytes(), (size + 4095) / 4096 * 4096);
    EXPECT_EQ(budget.used_bytes(), size);
    EXPECT_EQ(device_.registered_bytes, arena.size_bytes());
    EXPECT_EQ(device_.begin, arena.data());
    const std::span bytes(arena.data(), arena.size_bytes());
    EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte value) { return value == std::byte{0}; })) << size;
    std::ranges::fill(bytes, std::byte{0xff});
  }
  EXPECT_EQ(budget.used_bytes(), 0u);
  EXPECT_EQ(device_.registered_bytes, 0u);
}

TEST_F(HostArenaTest, OfNothing) {
  TierBudget budget(Tier::host, 0);
  const HostArena arena(budget, device_, 0, "nothing");
  EXPECT_EQ(arena.size_bytes(), 0u);
  EXPECT_EQ(device_.begin, nullptr);
}

TEST_F(HostArenaTest, RefusesWhatTheBudgetRefuses) {
  TierBudget budget(Tier::host, 10'000);
  test::expect_error(ErrorKind::resource, {"host", "moments"},
                     [&] { const HostArena arena(budget, device_, 10'001, "moments"); });
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST_F(HostArenaTest, RefusesWhatTheSystemRefuses) {
  TierBudget budget(Tier::host);
  test::expect_error(ErrorKind::resource, {"cannot map", "moments"},
                     [&] { const HostArena arena(budget, device_, size_t{1} << 60, "moments"); });
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST_F(HostArenaTest, GivesBackWhenItCannotBeRegistered) {
  TierBudget budget(Tier::host);
  device_.refuse = true;
  test::expect_error(ErrorKind::resource, {"cudaHostRegister"},
                     [&] { const HostArena arena(budget, device_, 4096, "weights"); });
  EXPECT_EQ(budget.used_bytes(), 0u);
}

}  // namespace
}  // namespace sluice
