#pragma once

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "io/aligned_buffer.h"
#include "io/file.h"
#include "io/io_queue.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_bytes.h"
#include "tests/support/temporary_folder.h"

// The suite that every IoQueue passes. An implementation adds one instantiation:
//   INSTANTIATE_TEST_SUITE_P(Threads, IoQueueContract, testing::Values(QueueCase{...}), queue_case_name);
// What is in a file is only asked of the queue: it may keep the contents elsewhere.
namespace sluice {

using test::fill_randomly;

struct QueueCase {
  std::string name;
  std::function<std::unique_ptr<IoQueue>(const IoQueueOptions&)> make;
  std::function<std::string()> unavailable_reason = [] { return std::string(); };
  enum class Contents { in_the_file, elsewhere } contents = Contents::in_the_file;
};

inline void PrintTo(const QueueCase& queue, std::ostream* out) {
  *out << queue.name;
}

inline std::string queue_case_name(const testing::TestParamInfo<QueueCase>& info) {
  return info.param.name;
}

class IoQueueContract : public testing::TestWithParam<QueueCase> {
 protected:
  using Kind = IoRequest::Kind;

  void SetUp() override {
    const std::string reason = GetParam().unavailable_reason();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  std::unique_ptr<IoQueue> make(IoQueueOptions options = {}) const { return GetParam().make(options); }

  // A sparse file of zeros, or where `flags` say so an older one.
  File file(uint64_t size_bytes, int flags = O_RDWR | O_CREAT, const char* name = "file") const {
    const auto path = folder() / name;
    const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
    if (descriptor < 0) throw_file_error("open", path, errno);
    File file = File::adopt(path, descriptor);
    if ((flags & O_CREAT) != 0 && ::ftruncate(descriptor, static_cast<off_t>(size_bytes)) != 0)
      throw_file_error("resize", path, errno);
    return file;
  }

  static int run(IoQueue& queue, const IoRequest& request) {
    queue.start({&request, 1});
    const auto completions = queue.wait(1);
    EXPECT_EQ(completions.size(), 1U);
    EXPECT_EQ(completions[0].tag, request.tag);
    EXPECT_GE(completions[0].seconds, 0);
    return completions[0].error_number;
  }

  // Made when it is first asked for: a death test's child would leave it behind.
  const test::TemporaryFolder& folder() const {
    if (!folder_) folder_.emplace();
    return *folder_;
  }

 private:
  mutable std::optional<test::TemporaryFolder> folder_;
};

inline bool equal_bytes(const std::byte* a, const std::byte* b, size_t size_bytes) {
  return std::memcmp(a, b, size_bytes) == 0;
}

TEST_P(IoQueueContract, BeginsEmpty) {
  const auto queue = make({.capacity = 7});
  EXPECT_EQ(queue->in_flight(), 0);
  EXPECT_EQ(queue->capacity(), 7);
  EXPECT_TRUE(queue->wait(0).empty());
  EXPECT_FALSE(queue->name().empty());
  queue->start({});
  EXPECT_EQ(queue->in_flight(), 0);
}

TEST_P(IoQueueContract, ReadsWhatWasWrittenAtAnySizeAndPlace) {
  const auto queue = make();
  const File target = file(0);
  for (const size_t size : {1, 511, 4095, 4096, 4097, 65536, (1 << 20) + 1, (3 << 20) + 5}) {
    for (const size_t offset : {0, 1, 4096, 99'999}) {
      SCOPED_TRACE(testing::Message() << size << " bytes at " << offset);
      std::vector<std::byte> sent(size + 1), got(size + 1);
      fill_randomly(sent, static_cast<uint32_t>(size));
      IoRequest request{Kind::write, target.descriptor(), sent.data() + 1, size, offset, size};
      EXPECT_EQ(run(*queue, request), 0);
      request.kind = Kind::read;
      request.data = got.data() + 1;
      EXPECT_EQ(run(*queue, request), 0);
      EXPECT_TRUE(equal_bytes(sent.data() + 1, got.data() + 1, size));
      EXPECT_EQ(got[0], std::byte{0});
    }
  }
}

// Past the page cache where the file system can, in memory and files that are registered or not.
TEST_P(IoQueueContract, DirectTransfersInRegisteredMemoryAndElsewhere) {
  constexpr size_t kSize = size_t{3} << 20;
  const AlignedBuffer registered(2 * kSize, "a test"), second(kSize, "a test"), plain(kSize, "a test");
  const File one = file(3 * kSize), two = file(3 * kSize, O_RDWR | O_CREAT, "two");
  for (const File* each : {&one, &two}) (void)::fcntl(each->descriptor(), F_SETFL, O_DIRECT);
  const auto queue =
      make({.buffers = {second.bytes(), registered.bytes()}, .descriptors = {one.descriptor()}});
  std::byte* middle = registered.data() + kSize / 2 / kIoAlignment * kIoAlignment;
  for (const File* target : {&one, &two}) {
    for (const size_t size : {size_t{4096}, size_t{1} << 20, kSize}) {
      for (std::byte* from : {registered.data(), middle, second.data(), plain.data()}) {
        for (std::byte* to : {registered.data() + kSize, plain.data()}) {
          fill_randomly({from, size}, static_cast<uint32_t>(size));
          EXPECT_EQ(run(*queue, {Kind::write, target->descriptor(), from, size, kSize}), 0);
          std::vector<std::byte> sent(from, from + size);
          std::fill_n(to, size, std::byte{1});
          EXPECT_EQ(run(*queue, {Kind::read, target->descriptor(), to, size, kSize}), 0);
          EXPECT_TRUE(equal_bytes(sent.data(), to, size));
        }
      }
    }
  }
}

// Begins in registered memory and ends outside.
TEST_P(IoQueueContract, TransfersAcrossTheEndOfRegisteredMemory) {
  std::vector<std::byte> memory(3 * 4096), got(memory.size());
  fill_randomly(memory, 5);
  const File target = file(0);
  const auto queue = make({.buffers = {{memory.data() + 4096, 4096}}});
  for (const auto& [begin, end] : {std::pair{0, 3}, {0, 2}, {1, 2}, {1, 3}, {2, 3}}) {
    const size_t size = static_cast<size_t>(end - begin) * 4096;
    EXPECT_EQ(run(*queue, {Kind::write, target.descriptor(), memory.data() + begin * 4096, size}), 0);
    EXPECT_EQ(run(*queue, {Kind::read, target.descriptor(), got.data(), size}), 0);
    EXPECT_TRUE(equal_bytes(got.data(), memory.data() + begin * 4096, size));
  }
}

TEST_P(IoQueueContract, OffsetsAbove4GiB) {
  const auto queue = make();
  constexpr uint64_t kFar = (uint64_t{5} << 30) + 12'345;
  const File target = file(kFar + 100);
  std::vector<std::byte> sent(100), got(100);
  fill_randomly(sent, 1);
  EXPECT_EQ(run(*queue, {Kind::write, target.descriptor(), sent.data(), 100, kFar}), 0);
  EXPECT_EQ(run(*queue, {Kind::read, target.descriptor(), got.data(), 100, kFar}), 0);
  EXPECT_EQ(got, sent);
  EXPECT_EQ(run(*queue, {Kind::read, target.descriptor(), got.data(), 100, kFar - (uint64_t{4} << 30)}), 0);
  EXPECT_EQ(got, std::vector<std::byte>(100));
}

TEST_P(IoQueueContract, ReadsBeyondTheEndAreErrors) {
  const auto queue = make();
  const AlignedBuffer memory(3 * kIoAlignment, "a test");
  const File target = file(10'000);
  const auto read = [&](std::byte* data, size_t size, uint64_t offset) {
    return run(*queue, {Kind::read, target.descriptor(), data, size, offset});
  };
  EXPECT_EQ(read(memory.data(), 10'000, 0), 0);
  EXPECT_EQ(read(memory.data(), 10'001, 0), ENODATA);
  EXPECT_EQ(read(memory.data(), 1, 10'000), ENODATA);
  EXPECT_EQ(read(memory.data(), 1, 9'999), 0);
  EXPECT_EQ(read(memory.data(), 4096, 1 << 20), ENODATA);
  // All of it aligned: the end lies within, or just at the end of a unit.
  EXPECT_EQ(read(memory.data(), 3 * 4096, 0), ENODATA);
  EXPECT_EQ(read(memory.data(), 4096, 8192), ENODATA);
  ASSERT_EQ(::ftruncate(target.descriptor(), 8192), 0);
  EXPECT_EQ(read(memory.data(), 3 * 4096, 0), ENODATA);
  EXPECT_EQ(read(memory.data(), 2 * 4096, 0), 0);
}

TEST_P(IoQueueContract, BadDescriptorsComeBackAsErrors) {
  const auto queue = make();
  std::vector<std::byte> memory(4096);
  const File target = file(4096);
  const File read_only = file(0, O_RDONLY), write_only = file(0, O_WRONLY);
  for (const Kind kind : {Kind::read, Kind::write}) {
    EXPECT_EQ(run(*queue, {kind, -1, memory.data(), 4096}), EBADF);
    EXPECT_EQ(run(*queue, {kind, 1'000'000, memory.data(), 4096}), EBADF);
  }
  EXPECT_EQ(run(*queue, {Kind::write, read_only.descriptor(), memory.data(), 4096}), EBADF);
  EXPECT_EQ(run(*queue, {Kind::read, read_only.descriptor(), memory.data(), 4096}), 0);
  EXPECT_EQ(run(*queue, {Kind::read, write_only.descriptor(), memory.data(), 4096}), EBADF);
  EXPECT_EQ(run(*queue, {Kind::write, write_only.descriptor(), memory.data(), 4096}), 0);
}

TEST_P(IoQueueContract, FullDeviceComesBackAsError) {
  if (GetParam().contents == QueueCase::Contents::elsewhere) return;  // it has a test of its own
  const auto queue = make();
  std::vector<std::byte> memory(4096);
  const int descriptor = ::open("/dev/full", O_RDWR | O_CLOEXEC);
  const File full = File::adopt("/dev/full", descriptor);
  EXPECT_EQ(run(*queue, {Kind::write, descriptor, memory.data(), 4096, 0, 3}), ENOSPC);
  const IoRequest request{Kind::write, descriptor, memory.data(), 4096, 8192};
  test::expect_error(ErrorKind::resource, {"write", "/dev/full", "offset 8192", "No space left"}, [&] {
    run_all(*queue, {&request, 1});
  });
}

// The first call writes less than it was asked to, the second says why.
TEST_P(IoQueueContract, ShortWritesGoOn) {
  if (GetParam().contents == QueueCase::Contents::elsewhere) return;
  const auto queue = make();
  const File target = file(0);
  std::vector<std::byte> sent(300'000), got(100'000);
  fill_randomly(sent, 1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const int error_number = run(*queue, {Kind::write, target.descriptor(), sent.data(), sent.size()});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error_number, EFBIG);
  EXPECT_EQ(run(*queue, {Kind::read, target.descriptor(), got.data(), got.size()}), 0);
  EXPECT_TRUE(equal_bytes(got.data(), sent.data(), got.size()));
}

TEST_P(IoQueueContract, EachCompletionIsSeenOnce) {
  constexpr int kCount = 50;
  constexpr size_t kSize = 10'000;
  const auto queue = make({.capacity = kCount});
  const File target = file(0);
  std::vector<std::byte> memory(kCount * kSize);
  std::vector<IoRequest> requests;
  for (int i = 0; i < kCount; ++i)
    requests.push_back({Kind::write, target.descriptor(), memory.data() + i * kSize, kSize, i * kSize,
                        1000 + static_cast<uint64_t>(i)});
  const std::function<int(int)> leasts[] = {[](int) { return 1; }, [](int in_flight) { return in_flight; },
                                            [](int in_flight) { return (in_flight + 1) / 2; },
                                            [](int) { return 0; }};  // polls
  for (const auto& least : leasts) {
    queue->start(std::span(requests).first(20));
    queue->start(std::span(requests).subspan(20));
    std::multiset<uint64_t> tags;
    while (queue->in_flight() > 0) {
      const int before = queue->in_flight(), asked = least(before);
      const auto completions = queue->wait(asked);
      EXPECT_GE(static_cast<int>(completions.size()), asked);
      EXPECT_EQ(queue->in_flight(), before - static_cast<int>(completions.size()));
      for (const IoCompletion& completion : completions) {
        EXPECT_EQ(completion.error_number, 0);
        tags.insert(completion.tag);
      }
      std::this_thread::yield();
    }
    EXPECT_EQ(tags.size(), kCount);
    EXPECT_EQ(std::set(tags.begin(), tags.end()).size(), kCount);
    EXPECT_EQ(*tags.begin(), 1000U);
    EXPECT_TRUE(queue->wait(0).empty());
  }
}

TEST_P(IoQueueContract, RunsManyMoreThanItHolds) {
  for (const size_t bytes_in_flight : {size_t{0}, size_t{100'000}, size_t{8} << 20}) {
    const auto queue = make({.capacity = 3});
    const File target = file(0);
    std::minstd_rand random(1);
    std::vector<IoRequest> requests;
    uint64_t offset = 0;
    for (int i = 0; i < 200; ++i) {
      const size_t size = 1 + random() % 30'000;
      requests.push_back({Kind::write, target.descriptor(), nullptr, size, offset, 7});
      offset += size;
    }
    std::vector<std::byte> sent(offset), got(offset);
    fill_randomly(sent, 2);
    for (IoRequest& request : requests) request.data = sent.data() + request.offset;
    run_all(*queue, requests, bytes_in_flight);
    EXPECT_EQ(queue->in_flight(), 0);
    for (IoRequest& request : requests) {
      request.kind = Kind::read;
      request.data = got.data() + request.offset;
    }
    run_all(*queue, requests, bytes_in_flight);
    EXPECT_TRUE(equal_bytes(got.data(), sent.data(), sent.size()));
    run_all(*queue, {});
  }
}

TEST_P(IoQueueContract, ThrowsTheFirstErrorOfABatch) {
  const auto queue = make({.capacity = 16});
  const File target = file(100'000);
  std::vector<std::byte> memory(20 * 1000);
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < 20; ++i)
    requests.push_back({Kind::read, target.descriptor(), memory.data() + i * 1000, 1000, i * 1000});
  requests[5].offset = 99'001;
  requests[9].descriptor = -1;
  test::expect_error(ErrorKind::data, {"1000 bytes", (folder() / "file").string(), "offset 99001", "ends"},
                     [&] { run_all(*queue, requests); });
  EXPECT_EQ(queue->in_flight(), 0);
  requests[5].offset = 0;
  test::expect_error(ErrorKind::runtime, {"cannot read descriptor -1 at offset 9000", "Bad file descriptor"},
                     [&] { run_all(*queue, requests); });
  requests[9].descriptor = target.descriptor();
  run_all(*queue, requests);
}

TEST_P(IoQueueContract, DestructorWaits) {
  constexpr size_t kCount = 20, kSize = 300'000;
  const File target = file(0);
  std::vector<std::byte> sent(kCount * kSize), got(sent.size());
  fill_randomly(sent, 3);
  {
    const auto queue = make();
    std::vector<IoRequest> requests;
    for (size_t i = 0; i < kCount; ++i)
      requests.push_back({Kind::write, target.descriptor(), sent.data() + i * kSize, kSize, i * kSize});
    queue->start(requests);
  }
  EXPECT_EQ(run(*make(), {Kind::read, target.descriptor(), got.data(), got.size()}), 0);
  EXPECT_TRUE(equal_bytes(got.data(), sent.data(), sent.size()));
}

TEST_P(IoQueueContract, IsMadeInOneThreadAndUsedInAnother) {
  std::vector<std::byte> sent(100'000), got(sent.size());
  fill_randomly(sent, 4);
  const File target = file(0);
  const auto queue = make({.buffers = {got}, .descriptors = {target.descriptor()}});
  std::thread([&] {
    EXPECT_EQ(run(*queue, {Kind::write, target.descriptor(), sent.data(), sent.size()}), 0);
    EXPECT_EQ(run(*queue, {Kind::read, target.descriptor(), got.data(), got.size()}), 0);
  }).join();
  EXPECT_EQ(got, sent);
}

TEST_P(IoQueueContract, QueuesOfSeveralThreadsShareAFile) {
  constexpr size_t kThreads = 3, kPieces = 40, kSize = 20'000;
  const File target = file(0);
  std::vector<std::byte> sent(kThreads * kPieces * kSize), got(sent.size());
  fill_randomly(sent, 5);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto queue = make({.capacity = 5});
      for (const Kind kind : {Kind::write, Kind::read}) {
        std::vector<IoRequest> requests;
        for (size_t i = t; i < kThreads * kPieces; i += kThreads) {
          std::byte* data = (kind == Kind::write ? sent : got).data() + i * kSize;
          requests.push_back({kind, target.descriptor(), data, kSize, i * kSize});
        }
        run_all(*queue, requests);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(equal_bytes(got.data(), sent.data(), sent.size()));
}

// Transfers of any kind, size and order next to each other, against the same done in an array.
TEST_P(IoQueueContract, RandomProgramsAgainstAnArray) {
  constexpr size_t kFileBytes = 1'000'001, kSlotBytes = 60'000;
  constexpr int kSlots = 12;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::minstd_rand random(seed);
    const auto below = [&](size_t end) { return static_cast<size_t>(random()) % end; };
    const AlignedBuffer memory(kSlots * kSlotBytes, "a test");
    const File target = file(kFileBytes, O_RDWR | O_CREAT, std::to_string(seed).c_str());
    IoQueueOptions options{.capacity = kSlots, .thread_count = 1 + static_cast<int>(below(4))};
    if (below(2) == 0) options.buffers = {memory.bytes().first(kSlots / 2 * kSlotBytes)};
    if (below(2) == 0) options.descriptors = {target.descriptor()};
    const auto queue = make(options);
    std::vector<std::byte> model(kFileBytes);
    std::vector<IoRequest> flying(kSlots);  // by slot, which is the tag; of 0 bytes where free
    const auto end_of = [](const IoRequest& request) { return request.offset + request.size_bytes; };

    for (int round = 0; round < 60; ++round) {
      std::vector<IoRequest> batch;
      for (size_t slot = 0; slot < kSlots; ++slot) {
        if (flying[slot].size_bytes > 0 || below(2) == 0) continue;
        IoRequest request{below(2) == 0 ? Kind::read : Kind::write,
                          target.descriptor(),
                          memory.data() + slot * kSlotBytes + below(100),
                          1 + below(kSlotBytes - 100),
                          below(kFileBytes),
                          slot};
        request.size_bytes = std::min(request.size_bytes, kFileBytes - request.offset);
        const bool is_disturbed = std::any_of(flying.begin(), flying.end(), [&](const IoRequest& other) {
          return other.size_bytes > 0 && other.offset < end_of(request) && request.offset < end_of(other) &&
                 (other.kind == Kind::write || request.kind == Kind::write);
        });
        if (is_disturbed) continue;
        if (request.kind == Kind::write) {
          fill_randomly({request.data, request.size_bytes}, static_cast<uint32_t>(random()));
          std::copy_n(request.data, request.size_bytes,
                      model.begin() + static_cast<ptrdiff_t>(request.offset));
        }
        flying[slot] = request;
        batch.push_back(request);
      }
      queue->start(batch);
      for (const IoCompletion& completion : queue->wait(static_cast<int>(below(queue->in_flight() + 1)))) {
        ASSERT_EQ(completion.error_number, 0);
        const IoRequest& request = flying[completion.tag];
        ASSERT_TRUE(equal_bytes(request.data, model.data() + request.offset, request.size_bytes));
        flying[completion.tag].size_bytes = 0;
      }
    }
    while (queue->in_flight() > 0) queue->wait(queue->in_flight());
    std::vector<std::byte> got(kFileBytes);
    EXPECT_EQ(run(*queue, {Kind::read, target.descriptor(), got.data(), got.size()}), 0);
    EXPECT_TRUE(equal_bytes(got.data(), model.data(), kFileBytes));
  }
}

using IoQueueContractDeathTest = IoQueueContract;

TEST_P(IoQueueContractDeathTest, Misuse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const File target = File::open("/dev/zero");
  std::vector<std::byte> memory(4096);
  const IoRequest request{Kind::read, target.descriptor(), memory.data(), 4096};
  EXPECT_DEATH(
      {
        const auto queue = make({.capacity = 2});
        queue->start(std::vector(3, request));
      },
      "free|capacity");
  EXPECT_DEATH(
      {
        const auto queue = make();
        queue->start({&request, 1});
        std::thread([&] { queue->start({&request, 1}); }).join();
      },
      "belongs to the thread that first used it");
  EXPECT_DEATH((void)make()->wait(1), "in_flight");
}

}  // namespace sluice
