#include "apps/nvme_bench/together.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "apps/common/option_values.h"
#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/scratch.h"
#include "io/aligned_buffer.h"
#include "io/make_io_queue.h"

namespace sluice::nvme_bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// The requests for [begin, end) of a striped file, in order.
Walk walk_stripes(const StripedFile& file, IoRequest::Kind kind, uint64_t begin, uint64_t end,
                  size_t block_bytes) {
  auto requests = std::make_shared<std::vector<IoRequest>>();
  for (uint64_t offset = begin; offset + block_bytes <= end; offset += block_bytes)
    file.add_requests(kind, offset, block_bytes, nullptr, 0, *requests);
  return {.count = requests->size(), .request = [requests](uint64_t index) { return (*requests)[index]; }};
}

Load striped_load(const StripedFile& file, Traffic traffic, size_t block_bytes, size_t bytes_in_flight) {
  using Kind = IoRequest::Kind;
  const uint64_t size = file.size_bytes(), half = size / 2 / kLargestBlock * kLargestBlock;
  Load load;
  load.block_bytes = block_bytes;
  load.bytes_in_flight = bytes_in_flight;
  const bool mixed = traffic == Traffic::mixed;
  if (traffic != Traffic::write)
    load.reads = walk_stripes(file, Kind::read, 0, mixed ? half : size, block_bytes);
  if (traffic != Traffic::read)
    load.writes = walk_stripes(file, Kind::write, mixed ? half : 0, size, block_bytes);
  return load;
}

// Drives, the file over them, and what it is used with.
class Together {
 public:
  Together(const Options& options, const std::vector<DriveResult>& drives, const Callbacks& callbacks)
      : options_(options), drives_(drives), callbacks_(callbacks) {
    double weights = 0;
    for (const DriveResult& drive : drives) {
      block_ = std::min(block_, drive.chosen.block_bytes);
      depth_ += drive.chosen.bytes_in_flight;
      double seconds = 0;  // for a byte of each traffic
      for (const auto& [traffic, measurement] : drive.measurements)
        seconds += 1 / measurement.bytes_per_second();
      parts_.push_back({.path = drive.folder, .weight = 1 / seconds});
      weights += parts_.back().weight;
    }
    // As much as leaves no drive with more than it was measured with.
    double size = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < parts_.size(); ++i)
      size = std::min(size, static_cast<double>(drives[i].file_bytes) * weights / parts_[i].weight);
    const uint64_t size_bytes = std::max(static_cast<uint64_t>(size), 4 * uint64_t{depth_}) / kMiB * kMiB;
    memory_ = AlignedBuffer(depth_, "the transfers", AlignedBuffer::Fill::now);
    fill_random(memory_.bytes(), static_cast<uint64_t>(::getpid()));
    callbacks.say("all drives together: making files of " + size_text(size_bytes) + " in all");
    file_ = create_scratch(parts_, size_bytes);
    queue_ = open_queue(memory_.bytes(), file_->descriptors(), drives[0].queue);
  }

  TogetherResult run() {
    try {
      write_first();
      for (const Traffic traffic : options_.traffic) measure_striped(traffic);
      result_.beside.resize(drives_.size());
      for (const Traffic traffic : options_.traffic) measure_beside(traffic);
    } catch (const Interrupted&) {
      result_.interrupted = true;
    }
    return std::move(result_);
  }

 private:
  static std::unique_ptr<IoQueue> open_queue(std::span<std::byte> memory, std::vector<int> descriptors,
                                             const std::string& name) {
    const int thread_count = 4 * static_cast<int>(descriptors.size());
    return make_io_queue(
        {.engine = name == "threads" ? IoChoice::Engine::threads : IoChoice::Engine::automatic,
         .queue = {.capacity = static_cast<int>(kMostTransfers),
                   .thread_count = thread_count,
                   .buffers = {memory},
                   .descriptors = std::move(descriptors)}},
        nullptr);
  }

  void stop_here() const {
    if (callbacks_.stop()) throw Interrupted{};
  }

  void write_first() {
    const Load once = striped_load(*file_, Traffic::write, block_, depth_);
    (void)measure(*queue_, once, memory_.bytes(), {.transfers = once.writes.count, .stop = callbacks_.stop});
    stop_here();
    file_->sync();
  }

  void measure_striped(Traffic traffic) {
    callbacks_.say("all drives together, striped: measuring " + std::string(name(traffic)));
    Measurement measurement = measure(*queue_, striped_load(*file_, traffic, block_, depth_), memory_.bytes(),
                                      {.seconds = options_.seconds, .stop = callbacks_.stop});
    if (traffic != Traffic::read) measurement.sync_seconds = timed_sync(*file_);
    result_.striped.emplace(traffic, std::move(measurement));
    stop_here();
  }

  // Every drive by itself: its own file, queue, memory, thread, and the settings found for it.
  void measure_beside(Traffic traffic) {
    callbacks_.say("all drives at once, each by itself: measuring " + std::string(name(traffic)));
    std::vector<Measurement> measurements(drives_.size());
    std::vector<std::exception_ptr> failures(drives_.size());
    {
      std::vector<std::jthread> threads;
      for (size_t drive = 0; drive < drives_.size(); ++drive) {
        threads.emplace_back([&, drive] {
          try {
            measurements[drive] = measure_one(drive, traffic);
          } catch (...) {
            failures[drive] = std::current_exception();
          }
        });
      }
    }
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
    for (size_t drive = 0; drive < drives_.size(); ++drive)
      result_.beside[drive].emplace(traffic, std::move(measurements[drive]));
    stop_here();
  }

  Measurement measure_one(size_t drive, Traffic traffic) const {
    const int descriptor = file_->descriptors()[drive];
    const SweepPoint& chosen = drives_[drive].chosen;
    const AlignedBuffer memory(chosen.bytes_in_flight, "the transfers", AlignedBuffer::Fill::now);
    fill_random(memory.bytes(), static_cast<uint64_t>(drive));
    const std::unique_ptr<IoQueue> queue = open_queue(memory.bytes(), {descriptor}, drives_[drive].queue);
    struct stat info {};
    if (::fstat(descriptor, &info) != 0) throw_file_error("examine", drives_[drive].folder, errno);
    const Load load = file_load(traffic, descriptor, static_cast<uint64_t>(info.st_size), chosen.block_bytes,
                                chosen.bytes_in_flight);
    return measure(*queue, load, memory.bytes(), {.seconds = options_.seconds, .stop = callbacks_.stop});
  }

  const Options& options_;
  const std::vector<DriveResult>& drives_;
  const Callbacks& callbacks_;
  size_t block_ = kLargestBlock, depth_ = 0;
  std::vector<StripedFile::Part> parts_;
  AlignedBuffer memory_;             // outlives the queue, which may have it in flight
  std::optional<StripedFile> file_;  // likewise
  std::unique_ptr<IoQueue> queue_;
  TogetherResult result_;
};

}  // namespace

TogetherResult bench_together(const Options& options, const std::vector<DriveResult>& drives,
                              const Callbacks& callbacks) {
  return Together(options, drives, callbacks).run();
}

}  // namespace sluice::nvme_bench
