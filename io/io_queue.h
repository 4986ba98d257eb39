#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Of memory, offsets and sizes of every transfer that bypasses the page cache; drives that want more are
// refused when a file is opened.
inline constexpr size_t kIoAlignment = 4096;

// One positional transfer between memory and an open file. With O_DIRECT, `data`, `offset` and `size_bytes`
// must be multiples of kIoAlignment. From 1 byte to 1 GiB.
struct IoRequest {
  enum class Kind { read, write };
  Kind kind = Kind::read;
  int descriptor = -1;
  std::byte* data = nullptr;  // written to by reads only
  size_t size_bytes = 0;
  uint64_t offset = 0;
  uint64_t tag = 0;  // the caller's; comes back with the completion
};

// A transfer's end: all bytes transferred, or the errno that stopped it after bounded retries. ENODATA: the
// file ended before the request did. After an error any part of the bytes may have been transferred.
struct IoCompletion {
  uint64_t tag = 0;
  int error_number = 0;
  double seconds = 0;  // from start() until its end was seen
};

// What a queue is made with.
struct IoQueueOptions {
  int capacity = 64;     // most transfers in flight
  int thread_count = 4;  // of the engine that needs threads
  // Memory and files to register with the kernel, which then need not be pinned and looked up once a
  // transfer. They are hints (other memory and other files work as well) and must stay mapped, and open as
  // the same file, for as long as the queue lives.
  std::vector<std::span<std::byte>> buffers;
  std::vector<int> descriptors;
};

// Transfers in flight on behalf of one thread: a batch in, completions out, in any order. Every result is
// checked: EINTR, EAGAIN and EBUSY are retried with back-off and a bound, short transfers are continued, a
// transfer that ends before its length is an error. Other errors, EIO among them, come back at once: whether
// to try again, or elsewhere, is for whoever knows what the bytes are.
//
// The thread that first starts a transfer is the only one that may use the queue from then on, its destructor
// included while anything is in flight (io_uring: SINGLE_ISSUER). The destructor waits for what is in flight:
// the kernel may still write to the memory.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual std::string_view name() const = 0;  // "io_uring", "threads", "memory"
  // Most transfers that may be in flight.
  virtual int capacity() const = 0;
  // Started, and not handed out by wait() yet.
  virtual int in_flight() const = 0;
  // Starts transfers. SLUICE_CHECKs that no more than capacity() are then in flight. Faults of the world come
  // with the completion, never as an exception from here.
  virtual void start(std::span<const IoRequest> requests) = 0;
  // Completions that nobody has seen yet, at least `least` of them (at most in_flight() can be asked for);
  // blocks until then. With 0 it only looks. Valid until the next call.
  virtual std::span<const IoCompletion> wait(int least) = 0;
};

// Runs all requests, with at most `bytes_in_flight` (but at least one request) at a time, and returns when
// all have ended; nothing else may be in flight. The first error in the order of the requests is thrown
// (throw_io_error) after everything in flight has ended; what was not started by then never is.
void run_all(IoQueue& queue, std::span<const IoRequest> requests, size_t bytes_in_flight = size_t{8} << 20);

// throw_file_error with the offset and with the path found by the descriptor; kind `data` where the file
// ended too early.
[[noreturn]] void throw_io_error(const IoRequest& request, int error_number);

}  // namespace sluice
