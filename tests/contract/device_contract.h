#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device.h"

// The suite that every Device passes. An implementation adds one instantiation:
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceContract, testing::Values(DeviceCase{...}), device_case_name);
namespace sluice::gpu {

struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>(size_t memory_limit_bytes)> make;
  std::function<std::string()> unavailable_reason = [] { return std::string(); };
  // At the end of each test, when all streams and memory are gone.
  std::function<void(Device&)> check = [](Device&) {};
};

inline void PrintTo(const DeviceCase& device, std::ostream* out) {
  *out << device.name;
}

inline std::string device_case_name(const testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

class DeviceContract : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    const std::string reason = GetParam().unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
    device_ = GetParam().make(0);
  }
  void TearDown() override {
    if (device_) GetParam().check(*device_);
  }

  std::unique_ptr<Stream> stream(StreamKind kind, const char* name) {
    return device_->make_stream(kind, name);
  }
  void fill(Stream& stream, const View& x, float value) { device_->ops().submit(stream, Fill{x, value}, {}); }
  void add(Stream& stream, const View& a, const View& b, const View& y) {
    device_->ops().submit(stream, Add{a, b, y}, {});
  }
  // The row as the host sees it once `stream` has come this far.
  std::vector<float> read(Stream& stream, const View& x) {
    std::vector<float> values(static_cast<size_t>(x.element_count()));
    device_->copy_to_host(stream, values.data(), x.data, values.size() * sizeof(float));
    stream.record().wait();
    return values;
  }

  std::unique_ptr<Device> device_;
};

inline std::string message_of(const Event& event) {
  try {
    event.wait();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline std::function<void()> failing(const char* message) {
  return [message] { throw Error(ErrorKind::runtime, message); };
}

inline std::vector<uint8_t> random_bytes(size_t size, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 8);
  return bytes;
}

TEST_P(DeviceContract, TraitsAreFilledIn) {
  const DeviceTraits& traits = device_->traits();
  EXPECT_FALSE(traits.name.empty());
  EXPECT_FALSE(traits.kernel_table_id.empty());
  EXPECT_GE(traits.alignment_bytes, 64u);
  EXPECT_EQ(traits.alignment_bytes & (traits.alignment_bytes - 1), 0u);
  EXPECT_TRUE(traits.preferred_compute_dtype == DType::f32 || traits.preferred_compute_dtype == DType::bf16);
}

TEST_P(DeviceContract, MemoryIsAligned) {
  constexpr size_t kHuge = size_t{2} << 20;
  for (const size_t size :
       {size_t{1}, size_t{255}, size_t{4097}, kHuge - 1, kHuge, kHuge + 1, 3 * kHuge + 5}) {
    const auto memory = device_->allocate(size);
    EXPECT_EQ(memory->size_bytes(), size);
    const size_t alignment = size >= kHuge ? kHuge : device_->traits().alignment_bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % alignment, 0u) << size;
  }
  EXPECT_EQ(device_->allocate(0)->size_bytes(), 0u);
}

TEST_P(DeviceContract, LimitIsObeyedToTheByte) {
  const auto limited = GetParam().make(1'000'000);
  auto first = limited->allocate(600'000);
  try {
    (void)limited->allocate(400'001);
    FAIL() << "more than the limit was handed out";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    EXPECT_NE(std::string(error.what()).find("400001"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("400000"), std::string::npos) << error.what();
  }
  EXPECT_NO_THROW((void)limited->allocate(400'000));
  first.reset();
  EXPECT_NO_THROW((void)limited->allocate(1'000'000));
  EXPECT_THROW((void)limited->allocate(SIZE_MAX / 2), Error);
}

TEST_P(DeviceContract, CopiesOfOddSizesAndPlaces) {
  const auto in = stream(StreamKind::copy_in, "in");
  const auto out = stream(StreamKind::copy_out, "out");
  for (const size_t size : {0, 1, 3, 63, 64, 65, 4095, 4097, (1 << 20) + 7, (9 << 20) + 1}) {
    for (const size_t offset : {0, 1, 5}) {
      SCOPED_TRACE(testing::Message() << size << " bytes at " << offset);
      const size_t whole = size + 2 * offset + 8;
      const auto memory = device_->allocate(whole);
      const std::vector<uint8_t> background(whole, 0xab);
      const std::vector<uint8_t> sent = random_bytes(size, static_cast<uint32_t>(size));
      std::vector<uint8_t> got(whole);
      device_->copy_to_device(*in, memory->data(), background.data(), whole);
      device_->copy_to_device(*in, memory->data() + offset, sent.data(), size);
      out->wait(in->record());
      device_->copy_to_host(*out, got.data(), memory->data(), whole);
      out->record().wait();
      std::vector<uint8_t> expected = background;
      std::copy(sent.begin(), sent.end(), expected.begin() + static_cast<ptrdiff_t>(offset));
      EXPECT_TRUE(got == expected);
    }
  }
}

TEST_P(DeviceContract, RegisteredMemoryIsCopiedAlike) {
  constexpr size_t kSize = size_t{3} << 20;
  std::vector<uint8_t> sent = random_bytes(kSize, 7);
  std::vector<uint8_t> got(kSize);
  const auto in = stream(StreamKind::copy_in, "in");
  const auto memory = device_->allocate(kSize);
  const auto sent_registration = device_->register_host_memory(sent.data(), kSize);
  const auto got_registration = device_->register_host_memory(got.data(), kSize);
  device_->copy_to_device(*in, memory->data(), sent.data(), kSize);
  device_->copy_to_host(*in, got.data(), memory->data(), kSize);
  in->record().wait();
  EXPECT_TRUE(got == sent);
}

TEST_P(DeviceContract, OneStreamRunsInOrder) {
  const auto compute = stream(StreamKind::compute, "compute");
  const auto memory = device_->allocate(256 * sizeof(float));
  const View x(memory->data(), DType::f32, 1, 256);
  std::vector<std::vector<float>> got(50, std::vector<float>(256));
  for (size_t i = 0; i < got.size(); ++i) {
    fill(*compute, x, static_cast<float>(i));
    add(*compute, x, x, x);
    device_->copy_to_host(*compute, got[i].data(), x.data, 256 * sizeof(float));
  }
  compute->record().wait();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], std::vector<float>(256, 2.0F * static_cast<float>(i)));
}

TEST_P(DeviceContract, EventsOrderStreams) {
  constexpr int64_t kCount = 5000;
  constexpr size_t kBytes = kCount * sizeof(float);
  const auto in = stream(StreamKind::copy_in, "in");
  const auto compute = stream(StreamKind::compute, "compute");
  const auto out = stream(StreamKind::copy_out, "out");
  const auto memory = device_->allocate(2 * kBytes);
  const View x(memory->data(), DType::f32, 1, kCount);
  const View y(memory->data() + kBytes, DType::f32, 1, kCount);
  std::vector<std::vector<float>> sent, got(30, std::vector<float>(kCount));
  for (size_t i = 0; i < got.size(); ++i) sent.emplace_back(kCount, static_cast<float>(i));
  for (size_t i = 0; i < got.size(); ++i) {
    device_->copy_to_device(*in, x.data, sent[i].data(), kBytes);
    compute->wait(in->record());
    add(*compute, x, x, y);
    const Event computed = compute->record();
    out->wait(computed);
    in->wait(computed);
    device_->copy_to_host(*out, got[i].data(), y.data, kBytes);
    compute->wait(out->record());
  }
  out->record().wait();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], std::vector<float>(kCount, 2.0F * static_cast<float>(i)));
}

TEST_P(DeviceContract, EventIsDoneOnceWaitedFor) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  std::atomic<bool> ran = false;
  cpu->run({"set", {}, [&] { ran = true; }});
  const Event event = cpu->record();
  const Event copy = event;  // NOLINT(performance-unnecessary-copy-initialization): copies share
  copy.wait();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(event.done());
  event.wait();
}

TEST_P(DeviceContract, EventIsNotDoneBeforeItsWork) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  std::atomic<bool> may_end = false;
  cpu->run({"hold", {}, [&] { may_end.wait(false); }});
  const Event event = cpu->record();
  EXPECT_FALSE(event.done());
  may_end = true;
  may_end.notify_all();
  event.wait();
}

TEST_P(DeviceContract, CpuStreamRunsInOrder) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  std::vector<int> order;
  for (int i = 0; i < 300; ++i) cpu->run({"append", {}, [&order, i] { order.push_back(i); }});
  cpu->record().wait();
  ASSERT_EQ(order.size(), 300u);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_P(DeviceContract, CpuAndDeviceStreamsWaitForEachOther) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  const auto in = stream(StreamKind::copy_in, "in");
  const auto out = stream(StreamKind::copy_out, "out");
  const auto memory = device_->allocate(sizeof(int64_t));
  int64_t value = 0;
  for (int i = 0; i < 20; ++i) {
    cpu->run({"increment", {reads(&value, 8), writes(&value, 8)}, [&value] { value = value * 3 + 1; }});
    in->wait(cpu->record());
    device_->copy_to_device(*in, memory->data(), &value, sizeof value);
    const Event sent = in->record();
    cpu->wait(sent);
    cpu->run({"destroy", {writes(&value, 8)}, [&value] { value = -1; }});
    out->wait(sent);
    out->wait(cpu->record());
    device_->copy_to_host(*out, &value, memory->data(), sizeof value);
    const Event back = out->record();
    cpu->wait(back);
    in->wait(back);
  }
  out->record().wait();
  int64_t expected = 0;
  for (int i = 0; i < 20; ++i) expected = expected * 3 + 1;
  EXPECT_EQ(value, expected);
}

TEST_P(DeviceContract, ErrorSkipsLaterCpuTasksAndReachesEveryLaterEvent) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  const auto other = stream(StreamKind::cpu, "other");
  std::atomic<int> before = 0;
  std::atomic<int> after = 0;
  cpu->run({"before", {}, [&] { ++before; }});
  const Event clean = cpu->record();
  cpu->run({"fail", {}, failing("EIO in block 3")});
  cpu->run({"after", {}, [&] { ++after; }});
  cpu->run({"fail", {}, failing("a second error")});
  std::atomic<int> last = 0;
  cpu->run({"give back", {}, [&] { ++last; }, true});
  const Event failed = cpu->record();
  other->run({"before", {}, [&] { ++before; }});
  other->wait(failed);
  other->run({"after", {}, [&] { ++after; }});
  EXPECT_EQ(message_of(other->record()), "EIO in block 3");
  EXPECT_EQ(message_of(failed), "EIO in block 3");
  EXPECT_EQ(message_of(failed), "EIO in block 3") << "a second wait hears of it too";
  EXPECT_EQ(message_of(cpu->record()), "EIO in block 3");
  EXPECT_EQ(message_of(clean), "");
  EXPECT_EQ(before, 2);
  EXPECT_EQ(after, 0);
  EXPECT_EQ(last, 1) << "what is to run even after an error";
}

TEST_P(DeviceContract, DeviceStreamsCarryErrorsAndRunThrough) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  const auto in = stream(StreamKind::copy_in, "in");
  const auto compute = stream(StreamKind::compute, "compute");
  const auto out = stream(StreamKind::copy_out, "out");
  const auto memory = device_->allocate(4 * sizeof(float));
  const View x(memory->data(), DType::f32, 1, 4);
  const std::vector<float> sent = {1, 2, 3, 4};
  std::vector<float> got(4);
  cpu->run({"fail", {}, failing("checksum of block 9")});
  in->wait(cpu->record());
  device_->copy_to_device(*in, x.data, sent.data(), 16);
  compute->wait(in->record());
  add(*compute, x, x, x);
  const Event computed = compute->record();
  out->wait(computed);
  device_->copy_to_host(*out, got.data(), x.data, 16);
  std::atomic<bool> wrote = false;
  cpu->wait(computed);
  cpu->run({"write", {}, [&] { wrote = true; }});
  EXPECT_EQ(message_of(computed), "checksum of block 9");
  EXPECT_EQ(message_of(out->record()), "checksum of block 9");
  EXPECT_EQ(message_of(cpu->record()), "checksum of block 9");
  EXPECT_EQ(got, (std::vector<float>{2, 4, 6, 8}));
  EXPECT_FALSE(wrote);
}

TEST_P(DeviceContract, FirstErrorStays) {
  const auto first = stream(StreamKind::cpu, "first");
  const auto second = stream(StreamKind::cpu, "second");
  const auto compute = stream(StreamKind::compute, "compute");
  first->run({"fail", {}, failing("first")});
  second->run({"fail", {}, failing("second")});
  compute->wait(first->record());
  compute->wait(second->record());
  EXPECT_EQ(message_of(compute->record()), "first");
}

TEST_P(DeviceContract, DestroyingAStreamWaitsForItsWork) {
  const auto memory = device_->allocate(1 << 20);
  const std::vector<uint8_t> sent = random_bytes(1 << 20, 3);
  std::vector<uint8_t> got(1 << 20);
  std::atomic<int> count = 0;
  for (int round = 0; round < 20; ++round) {
    auto cpu = stream(StreamKind::cpu, "cpu");
    auto copies = stream(StreamKind::copy_out, "copies");
    for (int i = 0; i < 10; ++i) cpu->run({"count", {}, [&] { ++count; }});
    device_->copy_to_device(*copies, memory->data(), sent.data(), sent.size());
    device_->copy_to_host(*copies, got.data(), memory->data(), got.size());
    cpu.reset();
    EXPECT_EQ(count, 10 * (round + 1));
    copies.reset();
    EXPECT_TRUE(got == sent);
    std::fill(got.begin(), got.end(), uint8_t{0});
  }
}

TEST_P(DeviceContract, EventsOutliveTheirStream) {
  auto cpu = stream(StreamKind::cpu, "cpu");
  auto compute = stream(StreamKind::compute, "compute");
  const Event clean = compute->record();
  cpu->run({"fail", {}, failing("kept")});
  const Event failed = cpu->record();
  cpu.reset();
  compute.reset();
  const auto later = stream(StreamKind::compute, "later");
  later->wait(clean);
  EXPECT_EQ(message_of(later->record()), "");
  later->wait(failed);
  EXPECT_EQ(message_of(later->record()), "kept");
  EXPECT_EQ(message_of(clean), "");
}

TEST_P(DeviceContract, MoreWorkThanAQueueHolds) {
  const auto cpu = stream(StreamKind::cpu, "cpu");
  const auto compute = stream(StreamKind::compute, "compute");
  int64_t sum = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (i % 1000 == 0) cpu->wait(compute->record());
    cpu->run({"add", {reads(&sum, 8), writes(&sum, 8)}, [&sum, i] { sum += i; }});
  }
  cpu->record().wait();
  EXPECT_EQ(sum, 49'995'000);
}

TEST_P(DeviceContract, ThreadsEachWithTheirStreams) {
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this, t, &right] {
      const auto memory = device_->allocate(64 * sizeof(float));
      const View x(memory->data(), DType::f32, 1, 64);
      const auto compute = stream(StreamKind::compute, "compute");
      const auto out = stream(StreamKind::copy_out, "out");
      for (int i = 0; i < 20; ++i) {
        fill(*compute, x, static_cast<float>(100 * t + i));
        out->wait(compute->record());
        right += read(*out, x) == std::vector<float>(64, static_cast<float>(100 * t + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 60);
}

// Random programs over a few buffers and streams with exactly the waits that they need, against a serial run.
TEST_P(DeviceContract, RandomProgramsEqualTheSerialRun) {
  constexpr size_t kBufferCount = 5;
  constexpr int64_t kCount = 33;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::minstd_rand random(seed);
    const auto pick = [&](size_t count) { return (random() >> 4) % count; };
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    std::vector<View> views;
    std::vector<std::vector<Event>> users(kBufferCount);  // all that a next access must wait for
    std::vector<float> expected(kBufferCount, 0);
    for (size_t i = 0; i < kBufferCount; ++i) {
      memory.push_back(device_->allocate(kCount * sizeof(float)));
      views.emplace_back(memory.back()->data(), DType::f32, 1, kCount);
    }
    std::vector<std::unique_ptr<Stream>> streams;
    for (const char* name : {"a", "b", "c"}) streams.push_back(stream(StreamKind::compute, name));
    const auto use = [&](Stream& stream, std::vector<size_t> buffers, const std::function<void()>& submit) {
      for (const size_t buffer : buffers) {
        for (const Event& event : users[buffer]) stream.wait(event);
      }
      submit();
      const Event event = stream.record();
      for (const size_t buffer : buffers) users[buffer] = {event};
    };
    for (size_t i = 0; i < kBufferCount; ++i) {
      Stream& on = *streams[pick(3)];
      use(on, {i}, [&] { fill(on, views[i], 0); });
    }
    for (int step = 0; step < 100; ++step) {
      Stream& on = *streams[pick(3)];
      const size_t x = pick(kBufferCount), y = pick(kBufferCount);
      if (pick(3) == 0) {
        use(on, {x}, [&] { fill(on, views[x], static_cast<float>(step)); });
        expected[x] = static_cast<float>(step);
      } else if (expected[x] + expected[y] < 1e6F) {
        use(on, {x, y}, [&] { add(on, views[x], views[y], views[x]); });
        expected[x] += expected[y];
      }
    }
    for (size_t i = 0; i < kBufferCount; ++i) {
      for (const Event& event : users[i]) streams[1]->wait(event);
      EXPECT_EQ(read(*streams[1], views[i]), std::vector<float>(kCount, expected[i]));
    }
  }
}

}  // namespace sluice::gpu
