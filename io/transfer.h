#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>

#include "io/io_queue.h"

namespace sluice {

// One request under way: what of it is left, and what to do about each result. The rules of retrying and
// continuing stand here once, for every queue. A value; not thread-safe.
class Transfer {
 public:
  enum class Next {
    done,        // completion() says how it ended
    at_once,     // what is left must be asked for again
    after_pause  // the same, but not before pause() has passed
  };

  Transfer() = default;
  explicit Transfer(const IoRequest& request);

  IoRequest::Kind kind() const { return request_.kind; }
  int descriptor() const { return request_.descriptor; }
  std::byte* data() const { return request_.data + done_bytes_; }
  size_t size_bytes() const { return request_.size_bytes - done_bytes_; }
  uint64_t offset() const { return request_.offset + done_bytes_; }
  const IoRequest& request() const { return request_; }

  // `result` is what pread, pwrite or io_uring returned for the whole of what was left: bytes, or -errno.
  Next take(int64_t result);
  std::chrono::microseconds pause() const;
  IoCompletion completion() const;

 private:
  Next retry(int error_number, Next how);
  Next end(int error_number);

  IoRequest request_;
  size_t done_bytes_ = 0;
  int retry_count_ = 0;  // since the last progress
  int error_number_ = 0;
  std::chrono::steady_clock::time_point start_time_;
  double seconds_ = 0;
};

// pread or pwrite of what is left, once: bytes, or -errno.
int64_t transfer_once(const Transfer& transfer);

// Holds a queue to one thread: the first that starts something.
class SingleUser {
 public:
  void check();

 private:
  std::optional<std::thread::id> thread_;
};

}  // namespace sluice
