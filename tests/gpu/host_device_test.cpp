#include "gpu/host/host_device.h"

#include <atomic>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/executor.h"
#include "gpu/reference/reference_ops.h"
#include "tests/contract/device_contract.h"

namespace sluice::gpu {
namespace {

SerialExecutor serial;

HostDeviceOptions reference_options() {
  return {.executor = serial, .make_ops = [](Executor&, Enqueue enqueue) {
            return std::make_unique<ReferenceOps>(std::move(enqueue));
          }};
}

DeviceCase host_case(std::string name, std::optional<uint64_t> delay_seed,
                     std::optional<uint64_t> step_seed) {
  DeviceCase result;
  result.name = std::move(name);
  result.make = [=](size_t limit) -> std::unique_ptr<Device> {
    HostDeviceOptions options = reference_options();
    options.memory_limit_bytes = limit;
    options.delay_seed = delay_seed;
    options.step_seed = step_seed;
    options.check_hazards = true;
    return make_host_device(options);
  };
  result.check = [](Device& device) {
    for (const Violation& violation : dynamic_cast<HostDevice&>(device).hazard_checker()->violations()) {
      ADD_FAILURE() << violation.text;
    }
    EXPECT_EQ(dynamic_cast<HostDevice&>(device).used_bytes(), 0u);
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceContract,
                         testing::Values(host_case("free", {}, {}), host_case("delayed", 1, {}),
                                         host_case("stepped", {}, 1), host_case("stepped_other", {}, 77),
                                         host_case("stepped_delayed", 5, 5)),
                         device_case_name);

TEST(HostDevice, TraitsComeFromTheOps) {
  const auto device = make_host_device(reference_options());
  EXPECT_EQ(device->traits().name, "host");
  EXPECT_EQ(device->traits().kernel_table_id, "reference");
  EXPECT_TRUE(device->traits().shares_host_memory);
  EXPECT_EQ(device->hazard_checker(), nullptr);
  EXPECT_EQ(device->stepper(), nullptr);
}

TEST(HostDevice, UsedBytesFollowAllocations) {
  const auto device = make_host_device(reference_options());
  auto one = device->allocate(1000);
  const auto two = device->allocate(5 << 20);
  EXPECT_EQ(device->used_bytes(), 1000u + (5u << 20));
  one.reset();
  EXPECT_EQ(device->used_bytes(), 5u << 20);
}

TEST(HostDevice, FreedMemoryGoesBackToTheSystem) {
  const auto resident_bytes = [] {
    size_t total_pages = 0, resident_pages = 0;
    std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
    return resident_pages * 4096;
  };
  constexpr size_t kSize = size_t{64} << 20;
  const auto device = make_host_device(reference_options());
  const size_t before = resident_bytes();
  auto memory = device->allocate(kSize);
  EXPECT_LT(resident_bytes(), before + kSize / 2) << "untouched pages cost nothing";
  std::fill_n(memory->data(), kSize, std::byte{1});
  EXPECT_GT(resident_bytes(), before + kSize / 2);
  memory.reset();
  EXPECT_LT(resident_bytes(), before + kSize / 2);
}

// Declares what an op touches and touches nothing: so a forgotten wait is no data race of the test itself.
class DeclaringOps final : public Ops {
 public:
  explicit DeclaringOps(Enqueue enqueue) : enqueue_(std::move(enqueue)) {}
  void submit(Stream& stream, Op op, Workspace) override {
    enqueue_(stream, {.name = name(op), .accesses = accesses(op), .body = [] {}});
  }
  size_t workspace_bytes(const Op&) const override { return 0; }
  size_t packed_bytes(int64_t, int64_t, DType, WeightLayout) const override { return 0; }
  std::string kernel_table_id() const override { return "none"; }
  DType preferred_compute_dtype() const override { return DType::f32; }

 private:
  Enqueue enqueue_;
};

// A forgotten wait is found every time, whatever the timing; with the wait the same program is clean.
TEST(HostDevice, ForgottenWaitIsFoundEveryTime) {
  for (const bool waits : {true, false}) {
    for (int round = 0; round < 50; ++round) {
      HostDeviceOptions options{.executor = serial, .make_ops = [](Executor&, Enqueue enqueue) {
                                  return std::make_unique<DeclaringOps>(std::move(enqueue));
                                }};
      options.check_hazards = true;
      if (round % 2 == 1) options.delay_seed = static_cast<uint64_t>(round);
      const auto device = make_host_device(options);
      const auto memory = device->allocate(64);
      const std::vector<float> host(16, 1);
      {
        const auto in = device->make_stream(StreamKind::copy_in, "copy_in");
        const auto compute = device->make_stream(StreamKind::compute, "compute");
        device->copy_to_device(*in, memory->data(), host.data(), 64);
        if (waits) compute->wait(in->record());
        device->ops().submit(*compute, Scale{View(memory->data(), DType::f32, 1, 16), 2}, {});
      }
      const auto violations = device->hazard_checker()->violations();
      ASSERT_EQ(violations.size(), waits ? 0u : 1u) << "round " << round;
      if (waits) continue;
      EXPECT_NE(violations[0].text.find("scale on 'compute' writes ["), std::string::npos);
      EXPECT_NE(violations[0].text.find("written by copy_to_device on 'copy_in' without a wait between"),
                std::string::npos);
    }
  }
}

// Several streams' tasks, all submitted before the first may run: the order they run in.
std::vector<int> stepped_order(uint64_t seed) {
  HostDeviceOptions options = reference_options();
  options.step_seed = seed;
  const auto device = make_host_device(options);
  std::vector<int> order;  // no lock: one task at a time
  {
    std::vector<std::unique_ptr<Stream>> streams;
    for (const char* name : {"a", "b", "c"}) streams.push_back(device->make_stream(StreamKind::cpu, name));
    device->stepper()->pause();
    for (int task = 0; task < 8; ++task) {
      for (int stream = 0; stream < 3; ++stream) {
        streams[static_cast<size_t>(stream)]->run(
            {"note", {}, [&order, id = 10 * stream + task] { order.push_back(id); }});
      }
      if (task == 4) streams[0]->wait(streams[1]->record());
    }
    device->stepper()->resume();
  }
  return order;
}

TEST(HostDevice, SteppingIsAFunctionOfTheSeed) {
  const std::vector<int> first = stepped_order(1);
  ASSERT_EQ(first.size(), 24u);
  for (int round = 0; round < 20; ++round) EXPECT_EQ(stepped_order(1), first);
  int different = 0;
  for (uint64_t seed = 2; seed < 10; ++seed) different += stepped_order(seed) != first;
  EXPECT_GE(different, 7);
}

TEST(HostDevice, SteppedTasksMayWaitForEvents) {
  HostDeviceOptions options = reference_options();
  options.step_seed = 3;
  const auto device = make_host_device(options);
  const auto a = device->make_stream(StreamKind::cpu, "a");
  const auto b = device->make_stream(StreamKind::cpu, "b");
  std::vector<std::string> order;
  a->run({"wait", {}, [&] {
            b->run({"note", {}, [&] { order.emplace_back("b"); }});
            b->record().wait();
            order.emplace_back("a");
          }});
  a->record().wait();
  EXPECT_EQ(order, (std::vector<std::string>{"b", "a"}));
}

TEST(HostDevice, DelaysAreAFunctionOfSeedStreamAndIndex) {
  EXPECT_EQ(schedule_draw(1, "compute", 5), schedule_draw(1, "compute", 5));
  EXPECT_NE(schedule_draw(1, "compute", 5), schedule_draw(2, "compute", 5));
  EXPECT_NE(schedule_draw(1, "compute", 5), schedule_draw(1, "copy_in", 5));
  EXPECT_NE(schedule_draw(1, "compute", 5), schedule_draw(1, "compute", 6));
}

using HostDeviceDeathTest = testing::Test;

TEST(HostDeviceDeathTest, MisuseStopsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto device = make_host_device(reference_options());
        const auto compute = device->make_stream(StreamKind::compute, "compute");
        compute->run({"task", {}, [] {}});
      },
      "run is for cpu streams");
  EXPECT_DEATH(
      {
        const auto device = make_host_device(reference_options());
        const auto memory = device->allocate(64);
        const auto in = device->make_stream(StreamKind::copy_in, "in");
        device->ops().submit(*in, Fill{View(memory->data(), DType::f32, 1, 16), 0}, {});
      },
      "ops are for compute streams");
  EXPECT_DEATH(
      {
        const auto device = make_host_device(reference_options());
        const auto memory = device->allocate(64);
        const auto in = device->make_stream(StreamKind::copy_in, "in");
        const std::vector<char> host(65);
        device->copy_to_device(*in, memory->data(), host.data(), 65);
      },
      "not this device's memory");
}

}  // namespace
}  // namespace sluice::gpu
