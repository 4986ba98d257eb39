#include "io/uring_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <liburing.h>
#include <map>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "engine/base/error.h"
#include "io/file.h"
#include "io/transfer.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kLargestRing = 4096;                   // entries; the kernel's own limit is 32768
constexpr size_t kLargestRegistration = size_t{1} << 30;  // of one entry, io_uring_register(2)
// The locked memory of a process that has just ended is given back late: 20 ms were enough.
constexpr int kRegistrationTries = 5;
constexpr std::chrono::milliseconds kRegistrationPause{20};
// The kernel is out of memory for requests when it says EAGAIN; a second of that is for good.
constexpr int kMostSubmitTries = 1000;
constexpr std::chrono::milliseconds kSubmitPause{1};

std::string errno_name(int error_number) {
  const char* name = ::strerrorname_np(error_number);
  return name != nullptr ? name : std::to_string(error_number);
}

std::string reason_text(int error_number) {
  const std::string name = " (" + errno_name(error_number) + ")";
  if (error_number == EPERM || error_number == EACCES) return "io_uring is not permitted here" + name;
  if (error_number == ENOSYS) return "this kernel has no io_uring" + name;
  return "io_uring does not work here" + name;
}

// A ring that belongs to whichever thread enables it, with the best flags that the kernel takes. Returns 0 or
// -errno.
int make_ring(unsigned entry_count, io_uring& ring) {
  // Completions are processed when the one thread asks for them, without interrupting it.
  constexpr unsigned kBest = IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
                             IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;  // Linux 6.1
  constexpr unsigned kGood = IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  int result = -EINVAL;
  for (const unsigned flags : {kBest, kGood, 0U}) {
    io_uring_params parameters{};
    parameters.flags = flags | IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    parameters.cq_entries = 4 * entry_count;
    result = io_uring_queue_init_params(entry_count, &ring, &parameters);
    if (result != -EINVAL) break;
  }
  return result;
}

// Makes the ring this thread's. 0 or -errno. (liburing 2.3 declares io_uring_enable_rings, but its library
// lacks it.)
int enable_ring(const io_uring& ring) {
  const long result =
      ::syscall(SYS_io_uring_register, ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  return result < 0 ? -errno : 0;
}

// What one entry of a ring answers to a read of a few bytes: their count, or -errno.
int trial_read(io_uring& ring) {
  int result = enable_ring(ring);
  if (result < 0) return result;
  const File zeros = File::open("/dev/zero");
  std::array<char, 64> bytes{};
  io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  io_uring_prep_read(sqe, zeros.descriptor(), bytes.data(), bytes.size(), 0);
  do {
    result = io_uring_submit_and_wait(&ring, 1);
  } while (result == -EINTR);
  if (result < 0) return result;
  io_uring_cqe* cqe = nullptr;
  do {
    result = io_uring_wait_cqe(&ring, &cqe);
  } while (result == -EINTR);
  if (result < 0) return result;
  result = cqe->res;
  io_uring_cqe_seen(&ring, cqe);
  return result;
}

// Sorted by address, for finding the entry that holds a transfer.
std::vector<iovec> pieces_of(const std::vector<std::span<std::byte>>& buffers) {
  std::vector<iovec> pieces;
  for (const std::span<std::byte> buffer : buffers) {
    for (size_t begin = 0; begin < buffer.size(); begin += kLargestRegistration)
      pieces.push_back({buffer.data() + begin, std::min(kLargestRegistration, buffer.size() - begin)});
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
  return pieces;
}

class UringQueue final : public IoQueue {
 public:
  UringQueue(const IoQueueOptions& options, std::string* note);
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;
  ~UringQueue() override;

  std::string_view name() const override { return "io_uring"; }
  int capacity() const override { return static_cast<int>(slots_.size()); }
  int in_flight() const override { return static_cast<int>(slots_.size() - free_.size()); }
  void start(std::span<const IoRequest> requests) override;
  std::span<const IoCompletion> wait(int least) override;

 private:
  using Slot = uint32_t;
  struct Paused {
    Slot slot;
    Clock::time_point due;
  };

  void register_files(const std::vector<int>& descriptors, std::string* note);
  void register_buffers(const std::vector<std::span<std::byte>>& buffers, std::string* note);
  int buffer_index(const Transfer& transfer) const;
  void enter(Slot slot);
  void submit(unsigned wait_count);
  void reap();
  void take(Slot slot, int result);
  void resume_paused();

  io_uring ring_{};
  bool is_enabled_ = false;
  SingleUser user_;
  std::map<int, int> file_indices_;  // registered descriptors
  std::vector<iovec> buffers_;       // registered, by address
  std::vector<Transfer> slots_;      // an entry's user data is its slot
  std::vector<Slot> free_;
  std::vector<Paused> paused_;
  unsigned entered_count_ = 0;   // in the ring or the kernel
  int failed_submit_count_ = 0;  // in a row
  std::vector<IoCompletion> seen_;
};

UringQueue::UringQueue(const IoQueueOptions& options, std::string* note) {
  SLUICE_CHECK(options.capacity > 0);
  const unsigned capacity = std::min(static_cast<unsigned>(options.capacity), kLargestRing);
  const int result = make_ring(capacity, ring_);
  if (result < 0) throw Error(ErrorKind::resource, reason_text(-result));
  try {
    slots_.resize(capacity);
    for (Slot slot = capacity; slot-- > 0;) free_.push_back(slot);
    seen_.reserve(capacity);
    register_files(options.descriptors, note);
    register_buffers(options.buffers, note);
  } catch (...) {
    io_uring_queue_exit(&ring_);
    throw;
  }
}

UringQueue::~UringQueue() {
  while (in_flight() > 0) wait(in_flight());
  io_uring_queue_exit(&ring_);
}

void UringQueue::register_files(const std::vector<int>& descriptors, std::string* note) {
  if (descriptors.empty()) return;
  const int result =
      io_uring_register_files(&ring_, descriptors.data(), static_cast<unsigned>(descriptors.size()));
  if (result == 0) {
    for (size_t i = 0; i < descriptors.size(); ++i) file_indices_[descriptors[i]] = static_cast<int>(i);
  } else if (note != nullptr) {
    *note += "io_uring could not register " + std::to_string(descriptors.size()) + " files (" +
             errno_name(-result) + "): using them unregistered.";
  }
}

void UringQueue::register_buffers(const std::vector<std::span<std::byte>>& buffers, std::string* note) {
  buffers_ = pieces_of(buffers);
  if (buffers_.empty()) return;
  int result = 0;
  for (int i = 0; i < kRegistrationTries; ++i) {
    if (i > 0) std::this_thread::sleep_for(kRegistrationPause);
    result = io_uring_register_buffers(&ring_, buffers_.data(), static_cast<unsigned>(buffers_.size()));
    if (result != -ENOMEM) break;
  }
  if (result == 0) return;
  size_t size_bytes = 0;
  for (const iovec& piece : buffers_) size_bytes += piece.iov_len;
  buffers_.clear();
  if (note == nullptr) return;
  *note += "io_uring could not register " + std::to_string(size_bytes >> 20) + " MiB of buffers (" +
           errno_name(-result) + "): using plain ones, which cost more CPU.";
  if (result == -ENOMEM) *note += " Raise the limit of locked memory (ulimit -l).";
}

// Of the registered buffer that holds all of the transfer; else -1.
int UringQueue::buffer_index(const Transfer& transfer) const {
  const auto after =
      std::upper_bound(buffers_.begin(), buffers_.end(), transfer.data(),
                       [](const std::byte* data, const iovec& b) { return data < b.iov_base; });
  if (after == buffers_.begin()) return -1;
  const iovec& buffer = *std::prev(after);
  const auto within = static_cast<size_t>(transfer.data() - static_cast<std::byte*>(buffer.iov_base));
  if (within + transfer.size_bytes() > buffer.iov_len) return -1;
  return static_cast<int>(after - buffers_.begin()) - 1;
}

void UringQueue::start(std::span<const IoRequest> requests) {
  user_.check();
  SLUICE_CHECK(requests.size() <= free_.size());
  if (!is_enabled_) {
    const int result = enable_ring(ring_);
    SLUICE_CHECK(result == 0, errno_text(-result));
    is_enabled_ = true;
  }
  for (const IoRequest& request : requests) {
    const Slot slot = free_.back();
    slots_[slot] = Transfer(request);
    free_.pop_back();
    enter(slot);
  }
  if (entered_count_ > 0) submit(0);
}

// Puts what is left of the slot's transfer into the ring.
void UringQueue::enter(Slot slot) {
  const Transfer& transfer = slots_[slot];
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  SLUICE_CHECK(sqe != nullptr);  // it has as many as there are slots
  const auto file = file_indices_.find(transfer.descriptor());
  const int descriptor = file != file_indices_.end() ? file->second : transfer.descriptor();
  const int buffer = buffer_index(transfer);
  const auto size = static_cast<unsigned>(transfer.size_bytes());
  const bool is_read = transfer.kind() == IoRequest::Kind::read;
  if (is_read && buffer >= 0) {
    io_uring_prep_read_fixed(sqe, descriptor, transfer.data(), size, transfer.offset(), buffer);
  } else if (is_read) {
    io_uring_prep_read(sqe, descriptor, transfer.data(), size, transfer.offset());
  } else if (buffer >= 0) {
    io_uring_prep_write_fixed(sqe, descriptor, transfer.data(), size, transfer.offset(), buffer);
  } else {
    io_uring_prep_write(sqe, descriptor, transfer.data(), size, transfer.offset());
  }
  if (file != file_indices_.end()) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, slot);
  ++entered_count_;
}

// What the kernel does not take now stays in the ring, and goes along with the next call.
void UringQueue::submit(unsigned wait_count) {
  const int result = wait_count > 0 ? io_uring_submit_and_wait(&ring_, wait_count) : io_uring_submit(&ring_);
  if (result >= 0 || result == -EINTR) {
    failed_submit_count_ = 0;
    return;
  }
  const bool is_short_of_memory = result == -EAGAIN || result == -EBUSY;
  SLUICE_CHECK(is_short_of_memory && ++failed_submit_count_ < kMostSubmitTries, errno_text(-result));
  if (wait_count > 0) std::this_thread::sleep_for(kSubmitPause);
}

std::span<const IoCompletion> UringQueue::wait(int least) {
  SLUICE_CHECK(least >= 0 && least <= in_flight());
  seen_.clear();
  if (in_flight() == 0) return seen_;
  user_.check();
  reap();
  resume_paused();
  while (seen_.size() < static_cast<size_t>(least)) {
    if (entered_count_ == 0) {
      std::this_thread::sleep_until(std::min_element(paused_.begin(), paused_.end(), [](auto& a, auto& b) {
                                      return a.due < b.due;
                                    })->due);
    } else {
      submit(std::min(static_cast<unsigned>(static_cast<size_t>(least) - seen_.size()), entered_count_));
      reap();
    }
    resume_paused();
  }
  if (io_uring_sq_ready(&ring_) > 0) submit(0);
  return seen_;
}

void UringQueue::reap() {
  std::array<io_uring_cqe*, 64> cqes{};
  while (const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes.data(), cqes.size())) {
    for (unsigned i = 0; i < count; ++i) take(static_cast<Slot>(cqes[i]->user_data), cqes[i]->res);
    io_uring_cq_advance(&ring_, count);
  }
}

void UringQueue::take(Slot slot, int result) {
  --entered_count_;
  Transfer& transfer = slots_[slot];
  switch (transfer.take(result)) {
    case Transfer::Next::done:
      seen_.push_back(transfer.completion());
      free_.push_back(slot);
      break;
    case Transfer::Next::at_once:
      enter(slot);
      break;
    case Transfer::Next::after_pause:
      paused_.push_back({slot, Clock::now() + transfer.pause()});
      break;
  }
}

void UringQueue::resume_paused() {
  if (paused_.empty()) return;
  const auto now = Clock::now();
  const auto end =
      std::partition(paused_.begin(), paused_.end(), [&](const Paused& p) { return p.due > now; });
  for (auto paused = end; paused != paused_.end(); ++paused) enter(paused->slot);
  paused_.erase(end, paused_.end());
}

}  // namespace

std::string uring_unavailable_reason() {
  io_uring ring{};
  int result = make_ring(4, ring);
  if (result < 0) return reason_text(-result);
  try {
    result = trial_read(ring);
  } catch (...) {
    io_uring_queue_exit(&ring);
    throw;
  }
  io_uring_queue_exit(&ring);
  if (result < 0) return reason_text(-result);
  return result > 0 ? "" : "io_uring does not work here (a read of a few bytes brought none)";
}

std::unique_ptr<IoQueue> make_uring_queue(const IoQueueOptions& options, std::string* note) {
  return std::make_unique<UringQueue>(options, note);
}

}  // namespace sluice
