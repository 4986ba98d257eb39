#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Of memory, offsets and sizes of every transfer that bypasses the page cache; drives that want more are
// refused when a file is opened.
inline constexpr size_t kIoAlignment = 4096;

// One positional transfer between memory and an open file. With O_DIRECT, `data`, `offset` and `size_bytes`
// must be multiples of kIoAlignment. At most 1 GiB.
struct IoRequest {
  enum class Kind { read, write };
  Kind kind = Kind::read;
  int descriptor = -1;
  std::byte* data = nullptr;  // written to by reads only
  size_t size_bytes = 0;
  uint64_t offset = 0;
  uint64_t tag = 0;  // the caller's; comes back with the completion
};

// A transfer's end: all bytes transferred, or the errno that stopped it after bounded retries. ENODATA: the file
// ended before the request did.
struct IoCompletion {
  uint64_t tag = 0;
  int error_number = 0;
  double seconds = 0;  // from start to end
};

// Transfers in flight on behalf of one thread: a batch in, completions out, in any order. Every result is
// checked: EINTR, EAGAIN and EBUSY are retried with back-off and a bound, short transfers are continued, a
// transfer that ends before its length is an error. The thread that first starts a transfer is the only one
// that may use the queue from then on (io_uring: SINGLE_ISSUER). The destructor waits for what is in flight:
// the kernel may still write to the memory.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual std::string_view name() const = 0;  // "io_uring", "threads", "memory"
  // Most transfers that may be in flight.
  virtual int capacity() const = 0;
  virtual int in_flight() const = 0;
  // Starts transfers. SLUICE_CHECKs that no more than capacity() are then in flight.
  virtual void start(std::span<const IoRequest> requests) = 0;
  // Completions that nobody has seen yet, at least `least` of them (at most in_flight() can be asked for);
  // blocks until then. Valid until the next call.
  virtual std::span<const IoCompletion> wait(int least) = 0;
};

// Runs all requests, with at most `bytes_in_flight` (but at least one request) at a time, and returns when
// all have ended. The first error in the order of the requests is thrown (throw_file_error with path and
// offset found by the descriptor) after everything in flight has ended.
void run_all(IoQueue& queue, std::span<const IoRequest> requests, size_t bytes_in_flight = size_t{8} << 20);

}  // namespace sluice
