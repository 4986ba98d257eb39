#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "io/io_queue.h"
#include "io/transfer.h"

namespace sluice {

// Contents of files, kept in memory: what MemoryQueues read and write instead of the files themselves, which
// only lend their identity (device, inode, birth), access mode and size. So whatever opens files, such as
// StripedFile, can be tested on top of it, closing and opening again included. What was never written reads
// as zero, whatever the file itself holds. Thread-safe.
class MemoryDisk {
 public:
  // Room for data; a write beyond it is cut short, then ENOSPC.
  explicit MemoryDisk(uint64_t capacity_bytes = UINT64_MAX) : capacity_bytes_(capacity_bytes) {}
  virtual ~MemoryDisk() = default;

  // As pread and pwrite: bytes, or -errno. A test may put faults of its own before them.
  virtual int64_t read(int descriptor, std::byte* out, size_t size_bytes, uint64_t offset) EXCLUDES(mutex_);
  virtual int64_t write(int descriptor, const std::byte* data, size_t size_bytes, uint64_t offset)
      EXCLUDES(mutex_);
  uint64_t used_bytes() const EXCLUDES(mutex_);

 private:
  static constexpr size_t kPageBytes = size_t{64} << 10;
  using Page = std::array<std::byte, kPageBytes>;
  struct Contents {
    uint64_t size_bytes = 0;  // as far as was written
    std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
  };
  struct Identity;
  using Key = std::array<uint64_t, 4>;
  static bool identify(int descriptor, Identity& identity);

  const uint64_t capacity_bytes_;
  mutable Mutex mutex_;
  std::map<Key, Contents> files_ GUARDED_BY(mutex_);
  uint64_t page_count_ GUARDED_BY(mutex_) = 0;
};

// What goes wrong, and when. It strikes an attempt (a continued or retried transfer is several) that fits all
// of the conditions, with probability `rate`, at most `times` times.
struct IoFault {
  enum class Kind {
    error,           // fails with error_number; nothing is transferred
    torn_write,      // a write fails with error_number; some of its 512-byte sectors, from the first on, are
                     // there
    short_transfer,  // some of the bytes only
    delay,           // ends up to delay_seconds later, and after up to delay_turns looks at what is in flight
    bit_flip,        // a read succeeds, with one wrong bit in memory
  };
  static constexpr size_t kKindCount = 5;
  Kind kind = Kind::error;
  int error_number = 5;  // EIO
  double delay_seconds = 0;
  int delay_turns = 0;
  double rate = 1;
  int times = INT32_MAX;
  std::optional<uint64_t> request = {};      // only the n-th that the queue started, from 0
  std::optional<IoRequest::Kind> only = {};  // reads, or writes
  uint64_t begin = 0, end = UINT64_MAX;      // only what touches this range of a file
};

// Transfers to and from a MemoryDisk, with faults from a seed; the same calls end in the same way each time
// (delays apart). Done by the thread that waits, in an order drawn from the seed. Catches two misuses: memory
// that is being read into holds rubbish until wait() hands out the completion, and data of a write that
// change before that break a SLUICE_CHECK.
class MemoryQueue final : public IoQueue {
 public:
  struct Options {
    int capacity = 64;
    uint64_t seed = 0;
    enum class Order { any, as_started } order = Order::any;
    std::vector<IoFault> faults = {};
  };

  explicit MemoryQueue(std::shared_ptr<MemoryDisk> disk) : MemoryQueue(std::move(disk), Options()) {}
  MemoryQueue(std::shared_ptr<MemoryDisk> disk, Options options);
  MemoryQueue(const MemoryQueue&) = delete;
  MemoryQueue& operator=(const MemoryQueue&) = delete;
  ~MemoryQueue() override;

  std::string_view name() const override { return "memory"; }
  int capacity() const override { return options_.capacity; }
  int in_flight() const override { return static_cast<int>(waiting_.size()); }
  void start(std::span<const IoRequest> requests) override;
  std::span<const IoCompletion> wait(int least) override;

  // The process dies here: of what is in flight nothing completes, each write is done, torn or not begun, as
  // the seed will. Of the queue only the destructor may be called after it.
  void crash();
  // How often faults of this kind struck.
  int fault_count(IoFault::Kind kind) const { return fault_counts_[static_cast<size_t>(kind)]; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Transfer transfer;
    uint64_t number = 0;  // of the request, among all that were started
    uint64_t data_hash = 0;
    Clock::time_point due;
    int turns = 0;  // until it may end
  };

  bool strikes(IoFault& fault, const Waiting& waiting);
  IoFault* find(IoFault::Kind kind, const Waiting& waiting);
  size_t random_below(size_t end);
  std::optional<size_t> pick();
  int64_t attempt(const Waiting& waiting);
  void tear(const Transfer& transfer);
  Transfer::Next advance(Waiting& waiting);

  const std::shared_ptr<MemoryDisk> disk_;
  Options options_;
  SingleUser user_;
  std::mt19937_64 random_;
  uint64_t started_count_ = 0;
  std::vector<Waiting> waiting_;    // in the order they were started
  std::vector<IoCompletion> seen_;  // what wait() handed out
  std::array<int, IoFault::kKindCount> fault_counts_{};
};

}  // namespace sluice
