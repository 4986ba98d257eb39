#include "apps/nvme_bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <sys/resource.h>
#include <vector>

#include "engine/base/error.h"

namespace sluice::nvme_bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double process_cpu_seconds() {
  rusage usage{};
  SLUICE_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void stamp(const IoRequest& request) {
  std::memcpy(request.data, &request.offset, sizeof request.offset);
  std::memcpy(request.data + request.size_bytes - sizeof request.offset, &request.offset,
              sizeof request.offset);
}

bool has_stamps(const IoRequest& request) {
  const std::byte* ends[] = {request.data, request.data + request.size_bytes - sizeof request.offset};
  return std::all_of(std::begin(ends), std::end(ends), [&](const std::byte* end) {
    return std::memcmp(end, &request.offset, sizeof request.offset) == 0;
  });
}

// The transfers of one measurement: a slot of memory for each that may be in flight.
class Run {
 public:
  Run(IoQueue& queue, const Load& load, std::span<std::byte> memory, const Limits& limits)
      : queue_(queue), load_(load), limits_(limits) {
    SLUICE_CHECK(load.block_bytes > 0 && load.reads.count + load.writes.count > 0);
    const size_t wanted = std::max<size_t>(1, load.bytes_in_flight / load.block_bytes);
    const size_t slots = std::min(
        {wanted, memory.size() / load.block_bytes, static_cast<size_t>(std::max(1, queue.capacity()))});
    SLUICE_CHECK(slots > 0);
    requests_.resize(slots);
    for (size_t slot = 0; slot < slots; ++slot) {
      memory_.push_back(memory.data() + slot * load.block_bytes);
      free_.push_back(slot);
    }
  }

  Measurement run() {
    const double cpu_before = process_cpu_seconds();
    start_ = Clock::now();
    if (std::isfinite(limits_.seconds)) result_.tenth_seconds = limits_.seconds / Measurement::kTenths;
    while (true) {
      if (started_ < limits_.transfers && seconds_since(start_) < limits_.seconds && !limits_.stop())
        start_more();
      if (queue_.in_flight() == 0) break;
      for (const IoCompletion& completion : queue_.wait(1)) take(completion);
    }
    result_.seconds = seconds_since(start_);
    result_.cpu_seconds = process_cpu_seconds() - cpu_before;
    return std::move(result_);
  }

 private:
  void start_more() {
    batch_.clear();
    while (!free_.empty() && started_ < limits_.transfers) {
      const size_t slot = free_.back();
      free_.pop_back();
      IoRequest request = next_request();
      SLUICE_CHECK(request.size_bytes <= load_.block_bytes);
      request.data = memory_[slot];
      request.tag = slot;
      if (request.kind == IoRequest::Kind::write) stamp(request);
      requests_[slot] = request;
      batch_.push_back(request);
      ++started_;
    }
    if (!batch_.empty()) queue_.start(batch_);
  }

  IoRequest next_request() {
    const bool both = load_.reads.count > 0 && load_.writes.count > 0;
    const bool write = both ? started_ % 2 == 1 : load_.reads.count == 0;
    uint64_t& next = write ? next_write_ : next_read_;
    const Walk& walk = write ? load_.writes : load_.reads;
    return walk.request(next++ % walk.count);
  }

  void take(const IoCompletion& completion) {
    const IoRequest& request = requests_[completion.tag];
    if (completion.error_number != 0) throw_io_error(request, completion.error_number);
    (request.kind == IoRequest::Kind::write ? result_.written_bytes : result_.read_bytes) +=
        request.size_bytes;
    result_.latency.add(completion.seconds);
    if (result_.tenth_seconds > 0) {
      const auto tenth = static_cast<size_t>(seconds_since(start_) / result_.tenth_seconds);
      if (tenth < Measurement::kTenths) result_.tenth_bytes[tenth] += request.size_bytes;
    }
    free_.push_back(completion.tag);
  }

  IoQueue& queue_;
  const Load& load_;
  const Limits& limits_;
  Clock::time_point start_;
  std::vector<std::byte*> memory_;   // (slot)
  std::vector<IoRequest> requests_;  // (slot) the one in flight
  std::vector<size_t> free_;
  std::vector<IoRequest> batch_;
  uint64_t started_ = 0, next_read_ = 0, next_write_ = 0;
  Measurement result_;
};

}  // namespace

std::string_view name(Traffic traffic) {
  switch (traffic) {
    case Traffic::read:
      return "read";
    case Traffic::write:
      return "write";
    case Traffic::mixed:
      return "mixed";
  }
  return "?";
}

Walk walk_blocks(IoRequest::Kind kind, int descriptor, uint64_t offset, uint64_t size_bytes,
                 size_t block_bytes) {
  return {.count = size_bytes / block_bytes, .request = [=](uint64_t index) {
            return IoRequest{.kind = kind,
                             .descriptor = descriptor,
                             .size_bytes = block_bytes,
                             .offset = offset + index * block_bytes};
          }};
}

double Measurement::steadiness() const {
  const auto [least, most] = std::minmax_element(tenth_bytes.begin(), tenth_bytes.end());
  return *most > 0 ? static_cast<double>(*least) / static_cast<double>(*most) : 0;
}

Measurement measure(IoQueue& queue, const Load& load, std::span<std::byte> memory, const Limits& limits) {
  return Run(queue, load, memory, limits).run();
}

void fill_random(std::span<std::byte> memory, uint64_t seed) {
  for (size_t i = 0; i < memory.size(); i += sizeof seed) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t x = seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    std::memcpy(memory.data() + i, &x, std::min(sizeof x, memory.size() - i));
  }
}

void check_stamps(IoQueue& queue, const Walk& reads, std::span<std::byte> memory, uint64_t most) {
  const uint64_t count = std::min(most, reads.count);
  for (uint64_t i = 0; i < count; ++i) {
    IoRequest request = reads.request(i * reads.count / count);
    SLUICE_CHECK(request.size_bytes <= memory.size());
    request.data = memory.data();
    stamp(request);
    request.data[0] ^= std::byte{0xff};  // what lay there before must not pass
    request.data[request.size_bytes - 1] ^= std::byte{0xff};
    run_all(queue, {&request, 1});
    if (has_stamps(request)) continue;
    throw Error(ErrorKind::runtime,
                "the drive gave back other bytes at offset " + std::to_string(request.offset) +
                    " of the test file than were written there a moment ago. Do not trust "
                    "it with data; look at the kernel's log (dmesg).");
  }
}

}  // namespace sluice::nvme_bench
