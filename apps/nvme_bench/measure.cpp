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

// splitmix64 (Steele, Lea, Flood 2014).
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
uint64_t scrambled(uint64_t x) {
  x += kGolden;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
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
    SLUICE_CHECK(load.block_bytes > 0 && load.reads.count + load.writes.count + load.probes.count > 0);
    const size_t probes = load.probes.count > 0 ? 1 : 0;
    SLUICE_CHECK(memory.size() >= probes * kProbeBytes);
    if (load.reads.count + load.writes.count > 0) {
      const size_t wanted = std::max<size_t>(1, load.bytes_in_flight / load.block_bytes);
      const size_t slots = std::min({wanted, (memory.size() - probes * kProbeBytes) / load.block_bytes,
                                     static_cast<size_t>(std::max(1, queue.capacity())) - probes});
      SLUICE_CHECK(slots > 0);
      for (size_t slot = 0; slot < slots; ++slot) {
        memory_.push_back(memory.data() + slot * load.block_bytes);
        free_.push_back(slot);
      }
    }
    probe_slot_ = memory_.size();
    probe_is_free_ = probes > 0;
    if (probe_is_free_) memory_.push_back(memory.data() + memory_.size() * load.block_bytes);
    requests_.resize(memory_.size());
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
    if (probe_is_free_) {
      IoRequest request = load_.probes.request(next_probe_++ % load_.probes.count);
      SLUICE_CHECK(request.size_bytes == kProbeBytes);
      add(request, probe_slot_);
      probe_is_free_ = false;
    }
    while (!free_.empty() && started_ < limits_.transfers) {
      const size_t slot = free_.back();
      free_.pop_back();
      IoRequest request = next_request();
      SLUICE_CHECK(request.size_bytes <= load_.block_bytes);
      add(request, slot);
      ++started_;
    }
    if (!batch_.empty()) queue_.start(batch_);
  }

  void add(IoRequest& request, size_t slot) {
    request.data = memory_[slot];
    request.tag = slot;
    if (request.kind == IoRequest::Kind::write) stamp(request);
    requests_[slot] = request;
    batch_.push_back(request);
  }

  IoRequest next_request() {
    const bool both = load_.reads.count > 0 && load_.writes.count > 0;
    // Reads are kept at their share of all that was started, the first of them first.
    const bool write = both ? static_cast<double>(next_read_) >=
                                  load_.read_share * static_cast<double>(next_read_ + next_write_ + 1)
                            : load_.reads.count == 0;
    uint64_t& next = write ? next_write_ : next_read_;
    const Walk& walk = write ? load_.writes : load_.reads;
    return walk.request(next++ % walk.count);
  }

  void take(const IoCompletion& completion) {
    const IoRequest& request = requests_[completion.tag];
    if (completion.error_number != 0) throw_io_error(request, completion.error_number);
    if (completion.tag == probe_slot_) {
      result_.probe_latency.add(completion.seconds);
      probe_is_free_ = true;
      return;
    }
    (request.kind == IoRequest::Kind::write ? result_.written_bytes : result_.read_bytes) +=
        request.size_bytes;
    result_.latency.add(completion.seconds);
    const double now = seconds_since(start_);
    result_.rate.add(now, request.size_bytes);
    if (result_.tenth_seconds > 0) {
      const auto tenth = static_cast<size_t>(now / result_.tenth_seconds);
      if (tenth < Measurement::kTenths) result_.tenth_bytes[tenth] += request.size_bytes;
    }
    free_.push_back(completion.tag);
  }

  IoQueue& queue_;
  const Load& load_;
  const Limits& limits_;
  Clock::time_point start_;
  std::vector<std::byte*> memory_;   // (slot), that of the probe last
  std::vector<IoRequest> requests_;  // (slot) the one in flight
  std::vector<size_t> free_;
  std::vector<IoRequest> batch_;
  size_t probe_slot_ = 0;
  bool probe_is_free_ = false;
  uint64_t started_ = 0, next_read_ = 0, next_write_ = 0, next_probe_ = 0;
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

Load file_load(Traffic traffic, int descriptor, uint64_t size_bytes, size_t block_bytes,
               size_t bytes_in_flight) {
  using Kind = IoRequest::Kind;
  const bool both = traffic == Traffic::mixed;
  const uint64_t half = both ? size_bytes / 2 / kLargestBlock * kLargestBlock : 0;
  Load load;
  load.block_bytes = block_bytes;
  load.bytes_in_flight = bytes_in_flight;
  if (traffic != Traffic::write)
    load.reads = walk_blocks(Kind::read, descriptor, 0, both ? half : size_bytes, block_bytes);
  if (traffic != Traffic::read)
    load.writes = walk_blocks(Kind::write, descriptor, half, size_bytes - half, block_bytes);
  return load;
}

Walk walk_scattered(int descriptor, uint64_t size_bytes, size_t block_bytes) {
  const uint64_t count = size_bytes / block_bytes;
  return {.count = count, .request = [=](uint64_t index) {
            return IoRequest{.kind = IoRequest::Kind::read,
                             .descriptor = descriptor,
                             .size_bytes = block_bytes,
                             .offset = scrambled(index) % count * block_bytes};
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
    const uint64_t x = scrambled(seed);
    seed += kGolden;
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
