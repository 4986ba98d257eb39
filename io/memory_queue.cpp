#include "io/memory_queue.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <utility>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr size_t kSectorBytes = 512;

bool is_read(const Transfer& transfer) {
  return transfer.kind() == IoRequest::Kind::read;
}

uint64_t hash(const IoRequest& request) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(request.data), request.size_bytes});
}

}  // namespace

MemoryQueue::MemoryQueue(std::shared_ptr<MemoryDisk> disk, Options options)
    : disk_(std::move(disk)), options_(std::move(options)), random_(options_.seed) {
  SLUICE_CHECK(options_.capacity > 0);
}

MemoryQueue::~MemoryQueue() {
  if (in_flight() > 0) wait(in_flight());
}

void MemoryQueue::start(std::span<const IoRequest> requests) {
  user_.check();
  SLUICE_CHECK(requests.size() <= static_cast<size_t>(capacity() - in_flight()));
  for (const IoRequest& request : requests) {
    Waiting waiting{.transfer = Transfer(request), .number = started_count_++};
    if (request.kind == IoRequest::Kind::read) {
      std::fill_n(request.data, request.size_bytes, std::byte{0xdb});
    } else {
      waiting.data_hash = hash(request);
    }
    waiting.due = Clock::now();
    if (const IoFault* fault = find(IoFault::Kind::delay, waiting)) {
      const double share = static_cast<double>(random_below(1001)) / 1000;
      waiting.due += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(fault->delay_seconds * share));
      waiting.turns = static_cast<int>(random_below(static_cast<size_t>(fault->delay_turns) + 1));
    }
    waiting_.push_back(waiting);
  }
}

std::span<const IoCompletion> MemoryQueue::wait(int least) {
  SLUICE_CHECK(least >= 0 && least <= in_flight());
  seen_.clear();
  if (in_flight() == 0) return seen_;
  user_.check();
  // Now and then more than was asked for, as from a real drive.
  const auto goal = std::max(static_cast<size_t>(least), random_below(waiting_.size() + 1));
  while (seen_.size() < goal) {
    const std::optional<size_t> picked = pick();
    if (!picked && seen_.size() >= static_cast<size_t>(least)) break;
    if (!picked) {
      std::this_thread::sleep_until(std::min_element(waiting_.begin(), waiting_.end(), [](auto& a, auto& b) {
                                      return a.due < b.due;
                                    })->due);
      continue;
    }
    Waiting& waiting = waiting_[*picked];
    if (advance(waiting) != Transfer::Next::done) continue;
    seen_.push_back(waiting.transfer.completion());
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(*picked));
  }
  return seen_;
}

void MemoryQueue::crash() {
  for (const Waiting& waiting : waiting_)
    if (!is_read(waiting.transfer)) tear(waiting.transfer);
  waiting_.clear();
}

size_t MemoryQueue::random_below(size_t end) {
  return random_() % end;
}

// The index of a transfer that may go on; nothing while all are delayed.
std::optional<size_t> MemoryQueue::pick() {
  const auto now = Clock::now();
  std::vector<size_t> ready;
  for (size_t i = 0; i < waiting_.size(); ++i)
    if (waiting_[i].due <= now && --waiting_[i].turns < 0) ready.push_back(i);
  if (ready.empty()) return std::nullopt;
  return options_.order == Options::Order::any ? ready[random_below(ready.size())] : ready.front();
}

bool MemoryQueue::strikes(IoFault& fault, const Waiting& waiting) {
  const Transfer& transfer = waiting.transfer;
  if (fault.times <= 0 || (fault.request && *fault.request != waiting.number)) return false;
  if (fault.only && *fault.only != transfer.kind()) return false;
  if (transfer.offset() >= fault.end || transfer.offset() + transfer.size_bytes() <= fault.begin)
    return false;
  constexpr size_t kParts = 1'000'000;
  if (static_cast<double>(random_below(kParts)) >= fault.rate * kParts) return false;
  --fault.times;
  ++fault_counts_[static_cast<size_t>(fault.kind)];
  return true;
}

IoFault* MemoryQueue::find(IoFault::Kind kind, const Waiting& waiting) {
  for (IoFault& fault : options_.faults)
    if (fault.kind == kind && strikes(fault, waiting)) return &fault;
  return nullptr;
}

Transfer::Next MemoryQueue::advance(Waiting& waiting) {
  // Pauses of retries are left out: nothing gets better by waiting here.
  const Transfer::Next next = waiting.transfer.take(attempt(waiting));
  if (next == Transfer::Next::done && !is_read(waiting.transfer)) {
    SLUICE_CHECK(hash(waiting.transfer.request()) == waiting.data_hash,
                 "the data of a write changed while it was in flight");
  }
  return next;
}

int64_t MemoryQueue::attempt(const Waiting& waiting) {
  const Transfer& transfer = waiting.transfer;
  if (const IoFault* fault = find(IoFault::Kind::error, waiting)) return -fault->error_number;
  size_t size = transfer.size_bytes();
  if (!is_read(transfer)) {
    if (const IoFault* fault = find(IoFault::Kind::torn_write, waiting)) {
      tear(transfer);
      return -fault->error_number;
    }
  }
  // A drive's smallest unit is transferred as a whole or not at all.
  if (size > kIoAlignment && find(IoFault::Kind::short_transfer, waiting) != nullptr)
    size = kIoAlignment + random_below(size - kIoAlignment);
  if (!is_read(transfer))
    return disk_->write(transfer.descriptor(), transfer.data(), size, transfer.offset());
  const int64_t count = disk_->read(transfer.descriptor(), transfer.data(), size, transfer.offset());
  if (count > 0 && find(IoFault::Kind::bit_flip, waiting) != nullptr) {
    const size_t bit = random_below(static_cast<size_t>(count) * 8);
    transfer.data()[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
  return count;
}

// Writes from none to all of the sectors. What the disk answers no longer matters.
void MemoryQueue::tear(const Transfer& transfer) {
  const size_t sectors = random_below(transfer.size_bytes() / kSectorBytes + 1);
  if (sectors > 0)
    (void)disk_->write(transfer.descriptor(), transfer.data(), sectors * kSectorBytes, transfer.offset());
}

// ---- MemoryDisk -------------------------------------------------------------------------------------------

struct MemoryDisk::Identity {
  Key key{};
  uint64_t size_bytes = 0;
  int access = 0;  // O_RDONLY, ...
};

bool MemoryDisk::identify(int descriptor, Identity& identity) {
  struct statx info {};
  if (descriptor < 0 || ::statx(descriptor, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &info) != 0)
    return false;
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0) return false;
  // The time of birth tells a file from a removed one whose inode it got.
  const bool has_birth = (info.stx_mask & STATX_BTIME) != 0;
  const uint64_t birth =
      static_cast<uint64_t>(info.stx_btime.tv_sec) * 1'000'000'000 + info.stx_btime.tv_nsec;
  identity.key = {info.stx_dev_major, info.stx_dev_minor, info.stx_ino, has_birth ? birth : 0};
  identity.size_bytes = info.stx_size;
  identity.access = flags & O_ACCMODE;
  return true;
}

int64_t MemoryDisk::read(int descriptor, std::byte* out, size_t size_bytes, uint64_t offset) {
  Identity identity;
  if (!identify(descriptor, identity) || identity.access == O_WRONLY) return -EBADF;
  MutexLock lock(mutex_);
  const Contents& contents = files_[identity.key];
  const uint64_t end = std::max(identity.size_bytes, contents.size_bytes);
  if (offset >= end) return 0;
  size_bytes = static_cast<size_t>(std::min<uint64_t>(size_bytes, end - offset));
  for (size_t done = 0; done < size_bytes;) {
    const uint64_t within = (offset + done) % kPageBytes;
    const size_t count = std::min<size_t>(size_bytes - done, kPageBytes - within);
    const auto page = contents.pages.find((offset + done) / kPageBytes);
    if (page == contents.pages.end()) {
      std::fill_n(out + done, count, std::byte{0});
    } else {
      std::copy_n(page->second->begin() + static_cast<ptrdiff_t>(within), count, out + done);
    }
    done += count;
  }
  return static_cast<int64_t>(size_bytes);
}

int64_t MemoryDisk::write(int descriptor, const std::byte* data, size_t size_bytes, uint64_t offset) {
  Identity identity;
  if (!identify(descriptor, identity) || identity.access == O_RDONLY) return -EBADF;
  MutexLock lock(mutex_);
  Contents& contents = files_[identity.key];
  size_t done = 0;
  while (done < size_bytes) {
    const uint64_t within = (offset + done) % kPageBytes;
    const size_t count = std::min<size_t>(size_bytes - done, kPageBytes - within);
    std::unique_ptr<Page>& page = contents.pages[(offset + done) / kPageBytes];
    if (!page) {
      if ((page_count_ + 1) * kPageBytes > capacity_bytes_) {
        contents.pages.erase((offset + done) / kPageBytes);
        break;
      }
      page = std::make_unique<Page>();
      ++page_count_;
    }
    std::copy_n(data + done, count, page->begin() + static_cast<ptrdiff_t>(within));
    done += count;
  }
  if (done == 0) return -ENOSPC;
  contents.size_bytes = std::max(contents.size_bytes, offset + done);
  return static_cast<int64_t>(done);
}

uint64_t MemoryDisk::used_bytes() const {
  MutexLock lock(mutex_);
  return page_count_ * kPageBytes;
}

}  // namespace sluice
