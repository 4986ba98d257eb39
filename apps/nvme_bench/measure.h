#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>

#include "apps/nvme_bench/latency.h"
#include "apps/nvme_bench/rate_series.h"
#include "io/io_queue.h"

namespace sluice::nvme_bench {

enum class Traffic { read, write, mixed };
std::string_view name(Traffic traffic);

// Places of a file, walked in order, round and round. `request(i)` tells where the i-th transfer goes; memory
// and tag are filled in by measure().
struct Walk {
  uint64_t count = 0;  // 0: none of this kind
  std::function<IoRequest(uint64_t index)> request;
};

// The blocks of a range of one file; a tail shorter than a block is left out.
Walk walk_blocks(IoRequest::Kind kind, int descriptor, uint64_t offset, uint64_t size_bytes,
                 size_t block_bytes);

// What to keep in flight.
struct Load {
  Walk reads, writes;
  double read_share = 0.5;  // of the transfers, where there are both
  size_t block_bytes = 0;   // no request is larger
  size_t bytes_in_flight = 0;
  // Reads of kProbeBytes beside them (or alone), one at a time: what somebody waits who needs a little while
  // much is under way.
  Walk probes;
};
inline constexpr size_t kProbeBytes = kIoAlignment;
// Larger requests are cut by StripedFile, so the engine would not send them.
inline constexpr uint64_t kLargestBlock = uint64_t{2} << 20;
// What is taken where nothing else was found better: facts measured before (io/make_io_queue.h).
inline constexpr uint64_t kUsualBlock = uint64_t{1} << 20, kUsualDepth = uint64_t{8} << 20;

struct Limits {
  double seconds = std::numeric_limits<double>::infinity();   // then nothing more is started
  uint64_t transfers = std::numeric_limits<uint64_t>::max();  // likewise
  std::function<bool()> stop = [] { return false; };          // asked after every wait
};

struct Measurement {
  static constexpr size_t kTenths = 10;

  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  double seconds = 0;        // from the first start to the last end
  double cpu_seconds = 0;    // of the whole process, kernel included
  double sync_seconds = 0;   // of an fdatasync afterwards, where the caller made one; not within `seconds`
  LatencyHistogram latency;  // of what the load transfers
  LatencyHistogram probe_latency;  // of its probes, which are in none of the counts
  RateSeries rate;
  std::array<uint64_t, kTenths>
      tenth_bytes{};  // transferred in each tenth of limits.seconds, if it is finite
  double tenth_seconds = 0;

  uint64_t probe_bytes() const { return probe_latency.count() * kProbeBytes; }
  uint64_t bytes() const { return read_bytes + written_bytes; }
  double bytes_per_second() const { return seconds > 0 ? static_cast<double>(bytes()) / seconds : 0; }
  double cpu_seconds_per_gb() const {
    return bytes() > 0 ? cpu_seconds / (static_cast<double>(bytes()) * 1e-9) : 0;
  }
  // Of the slowest tenth of the time over that of the fastest: far below 1 where a cache ran out.
  double steadiness() const;
};

// Transfers in flight until a limit is reached, then those in flight are waited for. Writes send what lies in
// `memory`, with the offset stamped into both ends of every block (check_stamps). `memory` is page-aligned
// and holds at least one block, and a probe where there are any. Throws Error(throw_io_error) at the first
// transfer that fails; the queue may then only be destroyed.
Measurement measure(IoQueue& queue, const Load& load, std::span<std::byte> memory, const Limits& limits);

// Of the whole file; mixed traffic reads its first half and writes the other.
Load file_load(Traffic traffic, int descriptor, uint64_t size_bytes, size_t block_bytes,
               size_t bytes_in_flight);

// Blocks of a file in a random order, the same in every run: a walk that no drive can foresee.
Walk walk_scattered(int descriptor, uint64_t size_bytes, size_t block_bytes);

// What random bytes look like to a drive that compresses: a function of the seed (splitmix64).
void fill_random(std::span<std::byte> memory, uint64_t seed);

// Reads up to `most` blocks, spread evenly over the walk, and checks the stamps that measure() wrote with
// blocks of this size. Throws Error(runtime) where something else comes back.
void check_stamps(IoQueue& queue, const Walk& reads, std::span<std::byte> memory, uint64_t most = 64);

}  // namespace sluice::nvme_bench
