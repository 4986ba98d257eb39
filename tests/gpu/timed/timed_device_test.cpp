#include "gpu/timed/timed_device.h"

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/executor.h"
#include "engine/base/thread_annotations.h"
#include "gpu/host/host_device.h"
#include "gpu/reference/reference_ops.h"
#include "tests/contract/device_contract.h"
#include "tests/support/forwarding_device.h"

namespace sluice::gpu {
namespace {

SerialExecutor serial;

std::unique_ptr<HostDevice> make_inner(std::optional<uint64_t> delay_seed = {}) {
  HostDeviceOptions options{.executor = serial, .make_ops = [](Executor&, Enqueue enqueue) {
                              return std::make_unique<ReferenceOps>(std::move(enqueue));
                            }};
  options.delay_seed = delay_seed;
  options.check_hazards = true;
  return make_host_device(options);
}

// A second for 1000 bf16 flops, 100 others, 1000 bytes of device memory, 100 bytes in or 50 out; launches 0.
GpuModel slow_gpu() {
  GpuModel model = gpu_model("flops=1000,f32_flops=100,memory=1000,pcie_in=100,pcie_out=50,capacity=1e6");
  model.launch_seconds = 0;
  return model;
}

constexpr int64_t kSecond = 1'000'000'000;

// Time that stands still: only the model's own times are left.
class StillClock final : public Clock {
 public:
  int64_t now_ns() override { return now_ns_; }
  void sleep_until(int64_t) override {}
  std::atomic<int64_t> now_ns_ = 0;
};

// Time that goes on when the test says so.
class HeldClock final : public Clock {
 public:
  int64_t now_ns() override {
    MutexLock lock(mutex_);
    return now_ns_;
  }
  void sleep_until(int64_t time_ns) override {
    MutexLock lock(mutex_);
    while (now_ns_ < time_ns) changed_.wait(lock);
  }
  void set(int64_t time_ns) {
    MutexLock lock(mutex_);
    now_ns_ = time_ns;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  std::condition_variable_any changed_;
  int64_t now_ns_ GUARDED_BY(mutex_) = 0;
};

class TimedDeviceTest : public testing::Test {
 protected:
  void SetUp() override { make(Numerics::off); }
  void TearDown() override {
    device_.reset();
    for (const Violation& violation : inner_->hazard_checker()->violations()) ADD_FAILURE() << violation.text;
    EXPECT_EQ(inner_->used_bytes(), 0u);
  }
  void make(Numerics numerics) {
    device_ = make_timed_device(*inner_, {.model = slow_gpu(), .numerics = numerics, .clock = &clock_});
  }
  std::unique_ptr<Stream> stream(StreamKind kind, const char* name) {
    return device_->make_stream(kind, name);
  }
  // An op of so many seconds by its bytes: a fill of 1000 bytes is one second.
  void compute(Stream& stream, int64_t seconds, std::byte* data) {
    device_->ops().submit(stream, Fill{View(data, DType::u8, 1, 1000 * seconds), 0}, {});
  }
  static double seconds_of(const Event& event) {
    event.wait();
    return static_cast<double>(modelled_time_ns(event)) / kSecond;
  }

  std::unique_ptr<HostDevice> inner_ = make_inner();
  StillClock clock_;
  std::unique_ptr<TimedDevice> device_;
};

TEST_F(TimedDeviceTest, OpsAndCopiesTakeTheModelsTime) {
  const auto memory = device_->allocate(10'000);
  std::vector<std::byte> host(500);
  const auto compute_stream = stream(StreamKind::compute, "compute");
  EXPECT_EQ(seconds_of(compute_stream->record()), 0);
  compute(*compute_stream, 3, memory->data());
  EXPECT_EQ(seconds_of(compute_stream->record()), 3);
  device_->copy_to_device(*compute_stream, memory->data(), host.data(), 500);
  EXPECT_EQ(seconds_of(compute_stream->record()), 8);
  device_->copy_to_host(*compute_stream, host.data(), memory->data(), 100);
  EXPECT_EQ(seconds_of(compute_stream->record()), 10);
  // 10 x 10 x 10 bf16: 2000 flops are 2 s of tensor cores, 600 bytes less than one of memory.
  const View matrix(memory->data(), DType::bf16, 10, 10);
  const PackedWeight weight{
      .data = memory->data(), .size_bytes = 200, .dtype = DType::bf16, .rows = 10, .cols = 10};
  device_->ops().submit(*compute_stream, LinearForward{.x = matrix, .weight = weight, .y = matrix}, {});
  EXPECT_EQ(seconds_of(compute_stream->record()), 12);
  EXPECT_EQ(device_->busy_seconds(GpuEngine::compute), 5);
  EXPECT_EQ(device_->busy_seconds(GpuEngine::copy_in), 5);
  EXPECT_EQ(device_->busy_seconds(GpuEngine::copy_out), 2);
}

TEST_F(TimedDeviceTest, StreamsRunSideBySideAndMeetAtEvents) {
  const auto memory = device_->allocate(10'000);
  std::vector<std::byte> host(1000);
  const auto in = stream(StreamKind::copy_in, "in");
  const auto compute_stream = stream(StreamKind::compute, "compute");
  const auto out = stream(StreamKind::copy_out, "out");
  device_->copy_to_device(*in, memory->data(), host.data(), 400);  // 0 .. 4
  const Event first = in->record();
  device_->copy_to_device(*in, memory->data(), host.data(), 400);  // 4 .. 8
  const Event second = in->record();
  compute_stream->wait(first);
  compute(*compute_stream, 1, memory->data());  // 4 .. 5
  const Event early = compute_stream->record();
  compute_stream->wait(second);
  compute(*compute_stream, 2, memory->data());  // 8 .. 10
  out->wait(early);
  device_->copy_to_host(*out, host.data(), memory->data(), 300);  // 5 .. 11
  out->wait(first);                                               // long past
  EXPECT_EQ(seconds_of(early), 5);
  EXPECT_EQ(seconds_of(compute_stream->record()), 10);
  EXPECT_EQ(seconds_of(out->record()), 11);
}

TEST_F(TimedDeviceTest, StreamsShareAnEngine) {
  const auto memory = device_->allocate(10'000);
  std::vector<std::byte> host(1000);
  const auto a = stream(StreamKind::compute, "a"), b = stream(StreamKind::compute, "b");
  const auto in = stream(StreamKind::copy_in, "in");
  compute(*a, 3, memory->data());
  compute(*b, 2, memory->data());
  device_->copy_to_device(*in, memory->data(), host.data(), 100);
  EXPECT_EQ(std::max(seconds_of(a->record()), seconds_of(b->record())), 5);
  EXPECT_EQ(seconds_of(in->record()), 1) << "copies are another engine";
  device_->copy_to_device(*a, memory->data(), host.data(), 1000);
  const double a_end = seconds_of(a->record());
  device_->copy_to_device(*in, memory->data(), host.data(), 100);
  EXPECT_EQ(seconds_of(in->record()), a_end + 1) << "a copy of a compute stream takes the copy engine";
}

TEST_F(TimedDeviceTest, WorkBeginsWhenItIsSubmitted) {
  const auto memory = device_->allocate(1000);
  const auto compute_stream = stream(StreamKind::compute, "compute");
  clock_.now_ns_ = 100 * kSecond;
  compute(*compute_stream, 1, memory->data());
  EXPECT_EQ(seconds_of(compute_stream->record()), 101);
}

// Work of the real world, which ends while somebody waits for it.
class LaterEvent final : public EventState {
 public:
  LaterEvent(StillClock& clock, int64_t end_ns) : clock_(clock), end_ns_(end_ns) {}
  bool done() const override { return clock_.now_ns_ >= end_ns_; }
  void wait() override { clock_.now_ns_ = end_ns_; }

 private:
  StillClock& clock_;
  const int64_t end_ns_;
};

TEST_F(TimedDeviceTest, WorkFollowsWhatTakesRealTime) {
  const auto memory = device_->allocate(2000);
  const auto compute_stream = stream(StreamKind::compute, "compute");
  compute(*compute_stream, 2, memory->data());
  compute_stream->wait(Event(std::make_shared<LaterEvent>(clock_, 50 * kSecond)));
  compute(*compute_stream, 1, memory->data());
  EXPECT_EQ(seconds_of(compute_stream->record()), 51);
}

TEST_F(TimedDeviceTest, WithoutNumericsZerosComeBackAndNothingIsThere) {
  EXPECT_THROW((void)device_->allocate(1'000'001), Error) << "the model's memory is the limit";
  device_->allocate(5000).reset();
  const auto memory = device_->allocate(4000);
  EXPECT_EQ(device_->peak_memory_bytes(), 5000u);
  EXPECT_EQ(inner_->used_bytes(), 0u);
  std::vector<float> host(1000, NAN);
  const auto compute_stream = stream(StreamKind::compute, "compute");
  device_->copy_to_device(*compute_stream, memory->data(), host.data(), 4000);
  device_->ops().submit(*compute_stream, Scale{View(memory->data(), DType::f32, 1, 1000), 2}, {});
  device_->copy_to_host(*compute_stream, host.data() + 1, memory->data(), 3992);
  const auto cpu = stream(StreamKind::cpu, "cpu");
  cpu->wait(compute_stream->record());
  std::vector<float> seen;
  cpu->run({"read", {}, [&] { seen = host; }});
  cpu->record().wait();
  for (size_t i = 1; i < 999; ++i) ASSERT_EQ(seen[i], 0) << i;
  EXPECT_TRUE(std::isnan(seen[0]) && std::isnan(seen[999])) << "to the byte";
}

TEST_F(TimedDeviceTest, WithoutNumericsAModelIsLargerThanTheMachine) {
  const auto h200 = make_timed_device(*inner_, {.model = gpu_model("H200")});
  const auto memory = h200->allocate(size_t{130} << 30);
  EXPECT_EQ(memory->size_bytes(), size_t{130} << 30);
}

TEST_F(TimedDeviceTest, NumericsAreTheInnerDevices) {
  make(Numerics::on);
  const auto memory = device_->allocate(400);
  EXPECT_EQ(inner_->used_bytes(), 400u);
  std::vector<float> host(100, 3);
  const auto compute_stream = stream(StreamKind::compute, "compute");
  device_->copy_to_device(*compute_stream, memory->data(), host.data(), 400);                      // 4 s
  device_->ops().submit(*compute_stream, Scale{View(memory->data(), DType::f32, 1, 100), 2}, {});  // 1 s
  device_->copy_to_host(*compute_stream, host.data(), memory->data(), 400);                        // 8 s
  EXPECT_EQ(seconds_of(compute_stream->record()), 13);
  EXPECT_EQ(host, std::vector<float>(100, 6));
}

TEST_F(TimedDeviceTest, TraitsAreTheModels) {
  EXPECT_EQ(device_->traits().bf16_flops_per_second, 1000);
  EXPECT_FALSE(device_->traits().shares_host_memory);
  EXPECT_EQ(device_->traits().preferred_compute_dtype, DType::bf16);
  EXPECT_EQ(device_->traits().kernel_table_id, "no numerics");
  make(Numerics::on);
  EXPECT_EQ(device_->traits().kernel_table_id, "reference");
}

TEST(TimedDeviceClock, EventsAreDoneAtTheModelledTimeAndNotBefore) {
  for (const Numerics numerics : {Numerics::off, Numerics::on}) {
    const auto inner = make_inner();
    HeldClock clock;
    const auto device =
        make_timed_device(*inner, {.model = slow_gpu(), .numerics = numerics, .clock = &clock});
    const auto memory = device->allocate(2000);
    const auto compute = device->make_stream(StreamKind::compute, "compute");
    const auto cpu = device->make_stream(StreamKind::cpu, "cpu");
    std::vector<Event> events;
    for (int i = 0; i < 2; ++i) {
      device->ops().submit(*compute, Fill{View(memory->data(), DType::u8, 1, 1000), 0}, {});
      events.push_back(compute->record());
    }
    std::atomic<bool> ran = false;
    cpu->wait(events[1]);
    cpu->run({"after", {}, [&] { ran = true; }});
    clock.set(kSecond - 1);
    EXPECT_FALSE(events[0].done());
    clock.set(kSecond);
    events[0].wait();
    EXPECT_FALSE(events[1].done());
    EXPECT_FALSE(ran);
    clock.set(2 * kSecond);
    cpu->record().wait();
    EXPECT_TRUE(ran);
    EXPECT_TRUE(events[1].done());
  }
}

TEST(TimedDeviceClock, AStreamIsDestroyedWhenItsTimeHasPassed) {
  const auto inner = make_inner();
  HeldClock clock;
  const auto device = make_timed_device(*inner, {.model = slow_gpu(), .clock = &clock});
  const auto memory = device->allocate(2000);
  auto compute = device->make_stream(StreamKind::compute, "compute");
  device->ops().submit(*compute, Fill{View(memory->data(), DType::u8, 1, 1000), 0}, {});
  std::atomic<bool> gone = false;
  std::thread owner([&] {
    compute.reset();
    gone = true;
  });
  EXPECT_FALSE(gone);
  clock.set(kSecond);
  owner.join();
  EXPECT_TRUE(gone);
}

// The steady clock: never too early.
TEST(TimedDeviceClock, RealTimePasses) {
  const auto inner = make_inner();
  SteadyClock clock;
  GpuModel model = slow_gpu();
  model.memory_bytes_per_second = 1e6;  // 1000 bytes a millisecond
  const auto device = make_timed_device(*inner, {.model = model});
  const auto memory = device->allocate(1000);
  const auto compute = device->make_stream(StreamKind::compute, "compute");
  const int64_t before = clock.now_ns();
  for (int i = 0; i < 20; ++i)
    device->ops().submit(*compute, Fill{View(memory->data(), DType::u8, 1, 1000), 0}, {});
  compute->record().wait();
  EXPECT_GE(clock.now_ns() - before, 20'000'000);
}

using TimedDeviceDeathTest = testing::Test;

TEST(TimedDeviceDeathTest, MisuseStopsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto inner = make_inner();
  const auto device = make_timed_device(*inner, {.model = slow_gpu()});
  const auto memory = device->allocate(1000);
  const View x(memory->data(), DType::f32, 1, 16);
  EXPECT_DEATH(memory->data()[0] = std::byte{1}, "");
  EXPECT_DEATH(device->make_stream(StreamKind::compute, "compute")->run({"task", {}, [] {}}),
               "run is for cpu streams");
  EXPECT_DEATH(device->ops().submit(*device->make_stream(StreamKind::copy_in, "in"), Fill{x, 0}, {}),
               "ops are for compute streams");
  EXPECT_DEATH(device->ops().submit(*inner->make_stream(StreamKind::compute, "compute"), Fill{x, 0}, {}),
               "a stream of another device");
}

// The device and what it needs, as one.
struct Parts {
  std::unique_ptr<HostDevice> inner;
  std::unique_ptr<TimedDevice> timed;
};

class OwningDevice final : private Parts, public test::ForwardingDevice {
 public:
  explicit OwningDevice(Parts parts) : Parts(std::move(parts)), ForwardingDevice(*timed) {}
  HostDevice& host() { return *Parts::inner; }
};

DeviceCase timed_case(const std::string& name, std::optional<uint64_t> delay_seed) {
  DeviceCase result;
  result.name = name;
  result.make = [=](size_t limit) -> std::unique_ptr<Device> {
    Parts parts;
    parts.inner = make_inner(delay_seed);
    parts.timed = make_timed_device(*parts.inner, {.model = gpu_model("flops=1e13,memory=1e11,pcie=1e10"),
                                                   .numerics = Numerics::on,
                                                   .memory_limit_bytes = limit});
    return std::make_unique<OwningDevice>(std::move(parts));
  };
  result.check = [](Device& device) {
    HostDevice& host = dynamic_cast<OwningDevice&>(device).host();
    for (const Violation& violation : host.hazard_checker()->violations()) ADD_FAILURE() << violation.text;
    EXPECT_EQ(host.used_bytes(), 0u);
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(Timed, DeviceContract,
                         testing::Values(timed_case("numerics", {}), timed_case("delayed", 3)),
                         device_case_name);

}  // namespace
}  // namespace sluice::gpu
