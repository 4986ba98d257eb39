#include "io/transfer.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Pauses of 0.1, 0.2 ... 100 ms, 1.1 s in all: a drive that is busy for longer is a fault.
constexpr int kMostRetries = 20;
constexpr std::chrono::microseconds kFirstPause{100};
constexpr std::chrono::microseconds kLongestPause{100'000};
constexpr size_t kLargestRequest = size_t{1} << 30;  // of one call; Linux allows 2 GiB - 4 KiB

bool is_aligned(const IoRequest& request) {
  return (request.offset | request.size_bytes | reinterpret_cast<uintptr_t>(request.data)) % kIoAlignment ==
         0;
}

}  // namespace

Transfer::Transfer(const IoRequest& request)
    : request_(request), start_time_(std::chrono::steady_clock::now()) {
  SLUICE_CHECK(request.size_bytes > 0 && request.size_bytes <= kLargestRequest);
  SLUICE_CHECK(request.data != nullptr);
}

Transfer::Next Transfer::take(int64_t result) {
  if (result < 0) {
    const int error_number = static_cast<int>(-result);
    if (error_number == EINTR) return retry(error_number, Next::at_once);
    if (error_number == EAGAIN || error_number == EBUSY) return retry(error_number, Next::after_pause);
    return end(error_number);
  }
  const bool is_read = kind() == IoRequest::Kind::read;
  // A write of nothing without an errno is what no file system should answer.
  const int error_of_nothing = is_read ? ENODATA : EIO;
  if (result == 0) return end(error_of_nothing);
  auto progress = static_cast<size_t>(result);
  SLUICE_CHECK(progress <= size_bytes());
  if (progress == size_bytes()) {
    done_bytes_ += progress;
    return end(0);
  }
  // O_DIRECT must go on at a multiple; a file that ends in between then yields no progress, time and again.
  if (is_aligned(request_)) progress = progress / kIoAlignment * kIoAlignment;
  if (progress == 0) return retry(error_of_nothing, Next::at_once);
  done_bytes_ += progress;
  retry_count_ = 0;
  return Next::at_once;
}

Transfer::Next Transfer::retry(int error_number, Next how) {
  if (retry_count_ == kMostRetries) return end(error_number);
  ++retry_count_;
  return how;
}

Transfer::Next Transfer::end(int error_number) {
  error_number_ = error_number;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time_).count();
  return Next::done;
}

std::chrono::microseconds Transfer::pause() const {
  return std::min(kFirstPause * (1 << std::clamp(retry_count_ - 1, 0, 10)), kLongestPause);
}

IoCompletion Transfer::completion() const {
  return {.tag = request_.tag, .error_number = error_number_, .seconds = seconds_};
}

int64_t transfer_once(const Transfer& transfer) {
  const auto offset = static_cast<off_t>(transfer.offset());
  const ssize_t count = transfer.kind() == IoRequest::Kind::read
                            ? ::pread(transfer.descriptor(), transfer.data(), transfer.size_bytes(), offset)
                            : ::pwrite(transfer.descriptor(), transfer.data(), transfer.size_bytes(), offset);
  return count >= 0 ? count : -errno;
}

void SingleUser::check() {
  if (!thread_) thread_ = std::this_thread::get_id();
  SLUICE_CHECK(*thread_ == std::this_thread::get_id(),
               "an IO queue belongs to the thread that first used it");
}

}  // namespace sluice
