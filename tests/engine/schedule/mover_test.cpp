#include "engine/schedule/mover.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/test_device.h"

namespace sluice {
namespace {

constexpr size_t kCount = 256;
constexpr size_t kBytes = kCount * sizeof(float);

std::vector<float> numbers(float first) {
  std::vector<float> values(kCount);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// Keeps a stream busy until opened.
class Door {
 public:
  gpu::Task task() {
    return {.name = "door", .accesses = {}, .body = [this] { open_.wait(false); }};
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_ = false;
};

class MoverTest : public testing::TestWithParam<uint64_t> {
 protected:
  std::byte* at(size_t slot) const { return memory_->data() + slot * kBytes; }
  gpu::View view(size_t slot) const { return {at(slot), DType::f32, 1, static_cast<int64_t>(kCount)}; }
  const std::byte* bytes(const std::vector<float>& values) const {
    return reinterpret_cast<const std::byte*>(values.data());
  }

  test::TestDevice host_{{.delay_seed = GetParam()}};
  std::unique_ptr<gpu::DeviceMemory> memory_ = host_.device().allocate(4 * kBytes);
  std::unique_ptr<gpu::Stream> cpu_ = host_.device().make_stream(gpu::StreamKind::cpu, "updates");
  std::unique_ptr<gpu::Stream> compute_ = host_.device().make_stream(gpu::StreamKind::compute, "compute");
};

TEST_P(MoverTest, BytesGoInAndOut) {
  Mover mover(host_.device());
  const std::vector<float> sent = numbers(1);
  std::vector<float> got(kCount);
  const Ticket ticket = mover.fetch({.device = at(0), .host = bytes(sent), .size_bytes = kBytes});
  compute_->wait(ticket.wait_enqueued());
  EXPECT_TRUE(ticket.enqueued());
  host_.device().ops().submit(*compute_, gpu::Add{view(0), view(0), view(1)}, {});
  mover.send(compute_->record(), got.data(), at(1), kBytes).wait();
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(got[i], 2 * sent[i]);
}

// A copy in waits for the update of its bytes on the host, on the mover's lane.
TEST_P(MoverTest, FetchComesAfterTheHostIsReady) {
  Mover mover(host_.device());
  Door door;
  std::vector<float> values(kCount);
  std::vector<float> got(kCount);
  cpu_->run(door.task());
  cpu_->run({"update", {gpu::writes(values.data(), kBytes)}, [&] {
               std::ranges::copy(numbers(5), values.begin());
             }});
  const Ticket ticket = mover.fetch(
      {.device = at(0), .host = bytes(values), .size_bytes = kBytes, .host_ready = {cpu_->record()}});
  EXPECT_FALSE(ticket.enqueued());
  door.open();
  mover.send(ticket.wait_enqueued(), got.data(), at(0), kBytes).wait();
  EXPECT_EQ(got, numbers(5));
}

// acquire may block until a copy is enqueued, never until it is done.
TEST_P(MoverTest, TicketComesBeforeTheCopyCanRun) {
  Mover mover(host_.device());
  Door door;
  cpu_->run(door.task());
  const gpu::Event still_in_use = cpu_->record();
  const std::vector<float> sent = numbers(7);
  const Ticket ticket =
      mover.fetch({.device = at(0), .host = bytes(sent), .size_bytes = kBytes, .device_free = still_in_use});
  const gpu::Event copied = ticket.wait_enqueued();
  EXPECT_FALSE(copied.done());
  door.open();
  copied.wait();
  EXPECT_TRUE(copied.done());
}

TEST_P(MoverTest, NobodyWaitsForTheHostWhereTheCopyIsEnqueuedAlready) {
  Mover mover(host_.device());
  const std::vector<float> sent = numbers(7);
  const Ticket ticket = mover.fetch({.device = at(0), .host = bytes(sent), .size_bytes = kBytes});
  while (!ticket.enqueued()) std::this_thread::yield();
  ticket.wait_enqueued().wait();  // `sent` is read until then
  EXPECT_EQ(mover.fetch_waits().host_seconds, 0.0);
  EXPECT_GE(mover.fetch_waits().enqueue_seconds, 0.0);
}

// By whom a wait is owed: up to the moment that a drive began to read, and from there on.
TEST_P(MoverTest, WaitsForADriveAreCountedApart) {
  using Time = std::chrono::steady_clock::time_point;
  const std::vector<float> sent = numbers(7);
  for (const Time begin : {Time::min(), Time::max()}) {
    Mover mover(host_.device());
    Door door;
    cpu_->run(door.task());
    const Ticket ticket = mover.fetch({.device = at(0),
                                       .host = bytes(sent),
                                       .size_bytes = kBytes,
                                       .host_ready = {cpu_->record()},
                                       .disk_begin = std::make_shared<Time>(begin)});
    std::thread opener([&] { door.open(); });
    ticket.wait_enqueued().wait();
    opener.join();
    const FetchWaits& waits = mover.fetch_waits();
    EXPECT_EQ(begin == Time::min() ? waits.host_seconds : waits.disk_seconds, 0.0);
    EXPECT_GE(begin == Time::min() ? waits.disk_seconds : waits.host_seconds, 0.0);
  }
}

TEST_P(MoverTest, GatherRunsAfterTheHostIsReadyAndBeforeTheCopy) {
  Mover mover(host_.device());
  Door door;
  std::vector<float> table(kCount), staging(kCount), got(kCount);
  cpu_->run(door.task());
  cpu_->run(
      {"update", {gpu::writes(table.data(), kBytes)}, [&] { std::ranges::copy(numbers(3), table.begin()); }});
  const Ticket ticket = mover.fetch(
      {.device = at(0),
       .host = bytes(staging),
       .size_bytes = kBytes,
       .host_ready = {cpu_->record()},
       .device_free = {},
       .gather = gpu::Task{"gather",
                           {gpu::reads(table.data(), kBytes), gpu::writes(staging.data(), kBytes)},
                           [&] { std::copy(table.rbegin(), table.rend(), staging.begin()); }}});
  door.open();
  mover.send(ticket.wait_enqueued(), got.data(), at(0), kBytes).wait();
  std::vector<float> expected = numbers(3);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(got, expected);
}

TEST_P(MoverTest, SendsKeepTheirOrder) {
  Mover mover(host_.device());
  std::vector<float> got(kCount);
  for (int i = 0; i < 20; ++i) {
    const size_t slot = static_cast<size_t>(i % 2);
    host_.device().ops().submit(*compute_, gpu::Fill{view(slot), static_cast<float>(i)}, {});
    const gpu::Event sent = mover.send(compute_->record(), got.data(), at(slot), kBytes);
    if (i % 2 == 1) compute_->wait(sent);
  }
  mover.send(compute_->record(), got.data(), at(1), kBytes).wait();
  EXPECT_EQ(got, std::vector<float>(kCount, 19));
}

TEST_P(MoverTest, SendWaitsForWhoeverStillReadsItsTarget) {
  Mover mover(host_.device());
  Door door;
  std::vector<float> target(kCount, -1);
  float seen = 0;
  host_.device().ops().submit(*compute_, gpu::Fill{view(0), 4}, {});
  cpu_->run(door.task());
  cpu_->run({"read", {gpu::reads(target.data(), kBytes)}, [&] { seen = target[100]; }});
  mover.send_after(cpu_->record());
  const gpu::Event sent = mover.send(compute_->record(), target.data(), at(0), kBytes);
  EXPECT_FALSE(sent.done());
  door.open();
  sent.wait();
  EXPECT_EQ(seen, -1);
  EXPECT_EQ(target[100], 4);
}

TEST_P(MoverTest, WithoutThatTheHazardIsFound) {
  std::vector<float> target(kCount, -1);
  {
    Mover mover(host_.device());
    cpu_->run({"read", {gpu::reads(target.data(), kBytes)}, [] {}});
    mover.send(compute_->record(), target.data(), at(0), kBytes).wait();
    cpu_->record().wait();
  }
  EXPECT_EQ(host_.take_hazards().size(), 1u);
}

TEST_P(MoverTest, AFailedUpdateComesOutOfTheTicket) {
  Mover mover(host_.device());
  const std::vector<float> values = numbers(0);
  cpu_->run({"update", {}, [] { throw Error(ErrorKind::runtime, "EIO in block 3"); }});
  const Ticket failed = mover.fetch(
      {.device = at(0), .host = bytes(values), .size_bytes = kBytes, .host_ready = {cpu_->record()}});
  test::expect_error(ErrorKind::runtime, {"EIO in block 3"}, [&] { (void)failed.wait_enqueued(); });
  const Ticket later = mover.fetch({.device = at(0), .host = bytes(values), .size_bytes = kBytes});
  test::expect_error(ErrorKind::runtime, {"EIO in block 3"}, [&] { (void)later.wait_enqueued(); });
}

TEST_P(MoverTest, AFailedGatherComesOutOfTheTicket) {
  Mover mover(host_.device());
  const std::vector<float> values = numbers(0);
  const Ticket failed =
      mover.fetch({.device = at(0),
                   .host = bytes(values),
                   .size_bytes = kBytes,
                   .host_ready = {},
                   .device_free = {},
                   .gather = gpu::Task{"gather", {}, [] { throw Error(ErrorKind::data, "row 7 is gone"); }}});
  test::expect_error(ErrorKind::data, {"row 7 is gone"}, [&] { (void)failed.wait_enqueued(); });
}

// Device streams run through and hand the error on: it comes out where the host waits.
TEST_P(MoverTest, AFailedSourceComesOutOfTheSend) {
  Mover mover(host_.device());
  std::vector<float> got(kCount);
  host_.device().ops().submit(*compute_, gpu::Fill{view(0), 4}, {});
  cpu_->run({"update", {}, [] { throw Error(ErrorKind::runtime, "EIO in block 3"); }});
  compute_->wait(cpu_->record());
  const gpu::Event sent = mover.send(compute_->record(), got.data(), at(0), kBytes);
  test::expect_error(ErrorKind::runtime, {"EIO in block 3"}, [&] { sent.wait(); });
}

INSTANTIATE_TEST_SUITE_P(Delays, MoverTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace sluice
