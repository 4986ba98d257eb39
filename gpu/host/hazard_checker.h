#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "gpu/host/access_history.h"
#include "gpu/host/vector_clock.h"
#include "gpu/stream_hooks.h"

namespace sluice::gpu {

// Two accesses of the same bytes on different streams, at least one of them a write, that no chain of record
// and wait puts in order.
struct Violation {
  std::string
      text;  // "add on 'compute' reads [0x7f.., +4096) written by fill on 'copy_in' without a wait between"
  std::string later_name, later_stream;
  std::string earlier_name, earlier_stream;
  const std::byte* begin = nullptr;
  size_t size_bytes = 0;
};

enum class OnViolation { collect, abort };

// Whether what one thread has waited for counts for what another thread submits. `per_thread` is exact where
// threads hand work over by events; `shared` is for those that do so by means that the checker cannot see (a
// queue with a mutex), and then misses what only luck of timing put in order.
enum class HostOrder { per_thread, shared };

// Finds forgotten waits when work is submitted, whatever the timing: a clock of every stream per stream
// (Lamport; FastTrack, Flanagan & Freund 2009) and the last accesses of every byte range. A host wait orders
// all that the waiting thread submits afterwards. What streams touch must be declared; what the host itself
// does between submissions is not seen. Events that the checker does not know order nothing. Thread-safe.
class HazardChecker final : public StreamObserver {
 public:
  explicit HazardChecker(OnViolation on_violation = OnViolation::collect,
                         HostOrder host_order = HostOrder::per_thread)
      : on_violation_(on_violation), host_order_(host_order) {}

  // The first kKeptViolations; count() has all.
  std::vector<Violation> violations() const EXCLUDES(mutex_);
  size_t violation_count() const EXCLUDES(mutex_);
  // Ranges with a history of their own: bounded by what is in use, however many tasks ran.
  size_t range_count() const EXCLUDES(mutex_);

  int add_stream(const std::string& name) override EXCLUDES(mutex_);
  void remove_stream(int stream) override EXCLUDES(mutex_);
  Order on_submit(int stream, const Task& task) override EXCLUDES(mutex_);
  Order on_record(int stream) override EXCLUDES(mutex_);
  void on_wait(int stream, const Order& order) override EXCLUDES(mutex_);
  void on_host_wait(const Order& order) override EXCLUDES(mutex_);
  // What the body submits comes after what its task comes after.
  void on_task_begin(const Order& order) override EXCLUDES(mutex_);
  void on_allocate(const void* begin, size_t size_bytes) override EXCLUDES(mutex_);
  // Judged like a write by the host: work that may still run must not lose its memory.
  void on_free(const void* begin, size_t size_bytes) override EXCLUDES(mutex_);

 private:
  static constexpr size_t kKeptViolations = 1000;

  VectorClock& host_clock() REQUIRES(mutex_);
  // The stream's clock, after everything that the calling thread has waited for.
  VectorClock& submitting_clock(int stream) REQUIRES(mutex_);
  void report(const AccessConflict& conflict, std::string_view later_name, const std::string& later_stream)
      REQUIRES(mutex_);

  const OnViolation on_violation_;
  const HostOrder host_order_;
  mutable Mutex mutex_;
  std::vector<std::string> stream_names_ GUARDED_BY(mutex_);
  std::vector<VectorClock> stream_clocks_ GUARDED_BY(mutex_);
  std::unordered_map<std::thread::id, VectorClock> host_clocks_ GUARDED_BY(mutex_);
  AccessHistory history_ GUARDED_BY(mutex_);
  std::vector<Violation> violations_ GUARDED_BY(mutex_);
  size_t violation_count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::gpu
