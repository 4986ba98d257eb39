#include "apps/nvme_bench/sustained.h"

#include <algorithm>
#include <memory>
#include <unistd.h>

#include "apps/common/option_values.h"
#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/scratch.h"
#include "engine/base/error.h"
#include "io/aligned_buffer.h"
#include "io/make_io_queue.h"

namespace sluice::nvme_bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr double kFastest = 15e9;  // bytes per second: a PCIe 5.0 x4 drive's link

IoChoice::Engine engine_of(QueueChoice queue) {
  return queue == QueueChoice::threads    ? IoChoice::Engine::threads
         : queue == QueueChoice::io_uring ? IoChoice::Engine::io_uring
                                          : IoChoice::Engine::automatic;
}

}  // namespace

uint64_t sustained_file_bytes(const Options& options, const Room& room, uint64_t least_bytes,
                              const std::string& folder) {
  const SustainedGoal& goal = *options.sustained;
  const uint64_t usable = room.usable_bytes();
  if (usable < least_bytes) {
    throw Error(ErrorKind::resource, "no room to write on and on in " + folder + ": " +
                                         size_text(room.free_bytes) + " are free, of which " +
                                         size_text(room.reserve_bytes()) + " stay free; at least " +
                                         size_text(least_bytes) + " more are needed. Free some space.");
  }
  const uint64_t wanted = goal.bytes ? *goal.bytes : static_cast<uint64_t>(goal.seconds * kFastest);
  uint64_t size = std::min(wanted, usable);
  if (options.size) {
    size = std::min(size, *options.size);
  } else if (!goal.bytes) {
    size = std::min(size, room.free_bytes / 2);
  }
  return std::max(size, least_bytes) / kMiB * kMiB;
}

double SustainedWrite::passes() const {
  return file_bytes > 0 ? static_cast<double>(measurement.written_bytes) / static_cast<double>(file_bytes)
                        : 0;
}

double SustainedWrite::seconds_before_fall() const {
  return found.fell ? static_cast<double>(found.fall) * measurement.rate.interval_seconds() : 0;
}

uint64_t SustainedWrite::bytes_before_fall() const {
  if (!found.fell) return 0;
  const std::vector<double> rates = measurement.rate.rates();
  double bytes = 0;
  for (size_t i = 0; i < found.fall; ++i) bytes += rates[i] * measurement.rate.interval_seconds();
  return static_cast<uint64_t>(bytes);
}

DriveResult bench_sustained(const Options& options, const std::string& folder, const Callbacks& callbacks) {
  DriveResult result{.folder = folder, .drive = identify_drive(folder)};
  result.chosen = {.block_bytes = options.usual_block(), .bytes_in_flight = options.usual_depth()};
  const Room room = room_at(folder);
  SustainedWrite sustained{.reserve_bytes = room.reserve_bytes()};
  sustained.file_bytes = sustained_file_bytes(options, room, 4 * result.chosen.bytes_in_flight, folder);
  result.file_bytes = sustained.file_bytes;
  const AlignedBuffer memory(result.chosen.bytes_in_flight, "the transfers", AlignedBuffer::Fill::now);
  fill_random(memory.bytes(), static_cast<uint64_t>(::getpid()));
  callbacks.say(folder + ": " + describe(result.drive) + "; making a file of " +
                size_text(sustained.file_bytes));
  StripedFile file = create_scratch({{.path = folder}}, sustained.file_bytes);
  std::string note;
  const std::unique_ptr<IoQueue> queue =
      make_io_queue({.engine = engine_of(options.queue),
                     .queue = {.capacity = static_cast<int>(kMostTransfers),
                               .buffers = {memory.bytes()},
                               .descriptors = file.descriptors()}},
                    &note);
  if (!note.empty()) callbacks.say(note);
  result.queue = queue->name();

  Load load;
  load.block_bytes = result.chosen.block_bytes;
  load.bytes_in_flight = result.chosen.bytes_in_flight;
  load.writes =
      walk_blocks(IoRequest::Kind::write, file.descriptors()[0], 0, sustained.file_bytes, load.block_bytes);
  Limits limits{.stop = callbacks.stop};
  if (options.sustained->bytes) {
    limits.transfers = std::max<uint64_t>(1, *options.sustained->bytes / load.block_bytes);
  } else {
    limits.seconds = options.sustained->seconds;
  }
  const DriveWatch watch(result.drive);
  callbacks.say(folder + ": writing on and on");
  sustained.measurement = measure(*queue, load, memory.bytes(), limits);
  sustained.measurement.sync_seconds = timed_sync(file);
  result.interrupted = callbacks.stop();
  result.proof = watch.finish({.written_bytes = sustained.measurement.written_bytes}, file.descriptors()[0],
                              sustained.file_bytes, file.buffered_reason());
  sustained.found = find_steady_rate(sustained.measurement.rate.rates());
  result.sustained = std::move(sustained);
  return result;
}

}  // namespace sluice::nvme_bench
