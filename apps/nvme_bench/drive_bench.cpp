#include "apps/nvme_bench/drive_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <memory>
#include <random>
#include <tuple>
#include <unistd.h>

#include "apps/common/median.h"
#include "apps/common/option_values.h"
#include "apps/nvme_bench/scratch.h"
#include "engine/base/error.h"
#include "io/aligned_buffer.h"
#include "io/make_io_queue.h"
#include "io/striped_file.h"

namespace sluice::nvme_bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr double kScatter = 0.05;

// How long and how often; the shares of --quick's 10 seconds.
struct Pace {
  uint64_t size;         // of the file, if nothing else limits it
  double first_seconds;  // of the first write, at most
  double slice_seconds;  // of one measurement in the sweep
  int rounds;
};

Pace pace_of(const Options& options) {
  if (options.quick) return {.size = 2048 * kMiB, .first_seconds = 2, .slice_seconds = 0.08, .rounds = 2};
  return {.size = 4096 * kMiB, .first_seconds = 20, .slice_seconds = 0.2, .rounds = 3};
}

// Half of what is free at most, so that others on the drive go on.
uint64_t choose_size(const Options& options, const Pace& pace, const std::filesystem::path& folder) {
  if (options.size) return *options.size / kMiB * kMiB + (*options.size % kMiB == 0 ? 0 : kMiB);
  const uint64_t size = std::min(pace.size, room_at(folder).free_bytes / 2) / kMiB * kMiB;
  return std::max(size, 4 * options.largest_depth());
}

// Seconds to read a byte and write one; what was not measured counts nothing.
double cost(double read_rate, double write_rate) {
  return (read_rate > 0 ? 1 / read_rate : 0) + (write_rate > 0 ? 1 / write_rate : 0);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text;
  ::gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string percent_text(double share) {
  return std::to_string(static_cast<int>(std::lround(share * 100))) + " %";
}

class DriveBench {
 public:
  DriveBench(const Options& options, const std::string& folder, Drive drive, const Callbacks& callbacks)
      : options_(options),
        callbacks_(callbacks),
        pace_(pace_of(options)),
        size_(choose_size(options, pace_, folder)),
        memory_(std::max(options.largest_depth(), options.largest_block()) + kProbeBytes, "the transfers",
                AlignedBuffer::Fill::now) {
    result_.folder = folder;
    result_.drive = std::move(drive);
    callbacks_.say(folder + ": " + describe(result_.drive) + "; making a file of " + size_text(size_));
    file_ = create_scratch({{.path = folder}}, size_);
    fill_random(memory_.bytes(), static_cast<uint64_t>(::getpid()));
  }

  DriveResult run() {
    const DriveWatch watch(result_.drive);
    try {
      open_queues();
      write_first();
      if (options_.queue == QueueChoice::automatic) choose_queue();
      sweep();
      measure_chosen();
      measure_mixes();
      if (options_.measures_load()) measure_loaded();
    } catch (const Interrupted&) {
      result_.interrupted = true;
    }
    result_.proof = watch.finish(asked_, descriptor(), result_.file_bytes, file_->buffered_reason());
    if (result_.proof.reached_drive() && !result_.interrupted) result_.settings = settings();
    return std::move(result_);
  }

 private:
  int descriptor() const { return file_->descriptors()[0]; }

  void open_queues() {
    const IoQueueOptions io{.capacity = static_cast<int>(kMostTransfers),
                            .buffers = {memory_.bytes()},
                            .descriptors = file_->descriptors()};
    using Engine = IoChoice::Engine;
    const auto add = [&](Engine engine) {
      std::string note;
      queues_.push_back(make_io_queue({.engine = engine, .queue = io}, &note));
      if (!note.empty()) callbacks_.say(note);
    };
    const bool may_choose = options_.queue == QueueChoice::automatic;
    if (options_.queue == QueueChoice::threads) add(Engine::threads);
    if (options_.queue == QueueChoice::io_uring) add(Engine::io_uring);
    if (may_choose) add(Engine::automatic);
    if (may_choose && queues_.front()->name() != "threads") add(Engine::threads);
    queue_ = queues_.front().get();
    result_.queue = queue_->name();
  }

  Walk walk(IoRequest::Kind kind, uint64_t offset, uint64_t size_bytes, size_t block_bytes) const {
    return walk_blocks(kind, descriptor(), offset, size_bytes, block_bytes);
  }

  Load load(Traffic traffic, size_t block_bytes, size_t bytes_in_flight) const {
    return file_load(traffic, descriptor(), result_.file_bytes, block_bytes, bytes_in_flight);
  }

  Measurement run_load(const Load& load, Limits limits) {
    limits.stop = callbacks_.stop;
    Measurement measurement = measure(*queue_, load, memory_.bytes(), limits);
    asked_.read_bytes += measurement.read_bytes + measurement.probe_bytes();
    asked_.written_bytes += measurement.written_bytes;
    return measurement;
  }

  void stop_here() const {
    if (callbacks_.stop()) throw Interrupted{};
  }

  // Of the rounds, bytes per second.
  struct Rates {
    std::vector<double> read, write;
  };

  // One round; what nobody asked for is left out.
  void add_rates(Rates& rates, size_t block_bytes, size_t bytes_in_flight) {
    const auto rate = [&](Traffic traffic) {
      const Measurement slice =
          run_load(load(traffic, block_bytes, bytes_in_flight), {.seconds = pace_.slice_seconds});
      stop_here();
      return slice.bytes_per_second();
    };
    const bool mixed = options_.measures(Traffic::mixed);
    if (mixed || options_.measures(Traffic::read)) rates.read.push_back(rate(Traffic::read));
    if (mixed || options_.measures(Traffic::write)) rates.write.push_back(rate(Traffic::write));
  }

  // Once over the file, or as far as time allows; the rest is then left out of everything.
  void write_first() {
    const size_t block = std::min<size_t>(kUsualBlock, memory_.size_bytes());
    Load once;
    once.writes = walk(IoRequest::Kind::write, 0, size_, block);
    once.block_bytes = block;
    once.bytes_in_flight = std::min<size_t>(kUsualDepth, memory_.size_bytes());
    const double seconds = options_.size ? std::numeric_limits<double>::infinity() : pace_.first_seconds;
    result_.first_write = run_load(once, {.seconds = seconds, .transfers = once.writes.count});
    result_.file_bytes = result_.first_write.written_bytes;
    stop_here();
    file_->sync();
    if (result_.file_bytes < 4 * options_.largest_block()) {
      throw Error(ErrorKind::runtime, "the drive wrote only " + size_text(result_.file_bytes) + " in " +
                                          std::to_string(static_cast<int>(seconds)) +
                                          " s: too slow to measure so. Give --size and a small --depth.");
    }
    check_stamps(*queue_, walk(IoRequest::Kind::read, 0, result_.file_bytes, block), memory_.bytes());
    asked_.read_bytes += std::min<uint64_t>(64, result_.file_bytes / block) * block;
    fill_random(memory_.bytes(), static_cast<uint64_t>(::getpid()));
  }

  void choose_queue() {
    const size_t block = options_.usual_block(), depth = options_.usual_depth();
    std::vector<Rates> rates(queues_.size());
    for (int round = 0; round < pace_.rounds + 1; ++round) {
      for (size_t turn = 0; turn < queues_.size(); ++turn) {
        const size_t index = (turn + static_cast<size_t>(round)) % queues_.size();
        queue_ = queues_[index].get();
        add_rates(rates[index], block, depth);
      }
    }
    size_t best = 0;
    for (size_t i = 0; i < queues_.size(); ++i) {
      result_.queues.push_back(
          {std::string(queues_[i]->name()), median(rates[i].read), median(rates[i].write)});
      const auto cost_of = [&](size_t index) {
        return cost(result_.queues[index].read_bytes_per_second,
                    result_.queues[index].write_bytes_per_second);
      };
      if (cost_of(i) < cost_of(best) * (1 - kScatter)) best = i;
    }
    queue_ = queues_[best].get();
    result_.queue = queue_->name();
  }

  void sweep() {
    std::vector<SweepPoint>& sweep = result_.sweep;
    for (const uint64_t block : options_.block_sizes)
      for (const uint64_t depth : options_.depths)
        sweep.push_back({.block_bytes = block, .bytes_in_flight = depth});
    callbacks_.say(result_.folder + ": " + std::to_string(sweep.size()) +
                   " pairs of block size and bytes in flight, " + result_.queue);
    std::vector<Rates> rates(sweep.size());
    std::vector<size_t> order(sweep.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937_64 random(1);  // drives drift: no point may always come first
    for (int round = 0; sweep.size() > 1 && round < pace_.rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        add_rates(rates[i], sweep[i].block_bytes, sweep[i].bytes_in_flight);
      }
    }
    for (size_t i = 0; i < sweep.size(); ++i) {
      sweep[i].read_bytes_per_second = median(rates[i].read);
      sweep[i].write_bytes_per_second = median(rates[i].write);
    }
    result_.chosen = choose_point(sweep);
  }

  void measure_chosen() {
    for (const Traffic traffic : options_.traffic) {
      callbacks_.say(result_.folder + ": measuring " + std::string(name(traffic)));
      Measurement measurement = run_load(chosen_load(traffic), {.seconds = options_.seconds});
      if (traffic != Traffic::read) measurement.sync_seconds = timed_sync(*file_);
      result_.measurements.emplace(traffic, std::move(measurement));
      stop_here();
    }
  }

  Load chosen_load(Traffic traffic) const {
    return load(traffic, result_.chosen.block_bytes, result_.chosen.bytes_in_flight);
  }

  void measure_mixes() {
    for (const double share : options_.read_shares) {
      callbacks_.say(result_.folder + ": measuring a mix with " + percent_text(share) + " reads");
      Load mix = chosen_load(Traffic::mixed);
      mix.read_share = share;
      result_.mixes.push_back({share, run_load(mix, {.seconds = options_.seconds})});
      stop_here();
    }
  }

  // Small reads alone, then beside each traffic. Half as long: four more measurements.
  void measure_loaded() {
    const Walk probes = walk_scattered(descriptor(), result_.file_bytes, kProbeBytes);
    const auto run = [&](const std::string& what, Load load) {
      callbacks_.say(result_.folder + ": measuring small reads, " +
                     (what == kNoLoad ? "alone" : "under load: " + what));
      load.probes = probes;
      result_.loaded.push_back({what, run_load(load, {.seconds = options_.seconds / 2})});
      stop_here();
    };
    Load none;
    none.block_bytes = kProbeBytes;
    run(kNoLoad, none);
    for (const Traffic traffic : options_.traffic) run(std::string(name(traffic)), chosen_load(traffic));
  }

  std::optional<DriveSettings> settings() const {
    if (result_.measurements.size() < 3) return std::nullopt;
    const Measurement& read = result_.measurements.at(Traffic::read);
    const Measurement& write = result_.measurements.at(Traffic::write);
    return DriveSettings{.queue = result_.queue,
                         .block_bytes = result_.chosen.block_bytes,
                         .bytes_in_flight = result_.chosen.bytes_in_flight,
                         .read_bytes_per_second = read.bytes_per_second(),
                         .write_bytes_per_second = write.bytes_per_second(),
                         .mixed_bytes_per_second = result_.measurements.at(Traffic::mixed).bytes_per_second(),
                         .read_cpu_seconds_per_gb = read.cpu_seconds_per_gb(),
                         .write_cpu_seconds_per_gb = write.cpu_seconds_per_gb(),
                         .measured_at = utc_now()};
  }

  const Options& options_;
  const Callbacks& callbacks_;
  const Pace pace_;
  const uint64_t size_;
  AlignedBuffer memory_;             // outlives the queues, which may have it in flight
  std::optional<StripedFile> file_;  // likewise
  std::vector<std::unique_ptr<IoQueue>> queues_;
  IoQueue* queue_ = nullptr;
  ByteCount asked_;
  DriveResult result_;
};

}  // namespace

SweepPoint choose_point(const std::vector<SweepPoint>& sweep) {
  SLUICE_CHECK(!sweep.empty());
  const auto cost_of = [](const SweepPoint& point) {
    return cost(point.read_bytes_per_second, point.write_bytes_per_second);
  };
  double least = std::numeric_limits<double>::infinity();
  for (const SweepPoint& point : sweep) least = std::min(least, cost_of(point));
  // Blocks farther from 1 MiB, and more in flight, need a reason.
  const auto strangeness = [](const SweepPoint& point) {
    const bool usual = point.block_bytes == kUsualBlock && point.bytes_in_flight == kUsualDepth;
    return std::make_tuple(!usual, point.bytes_in_flight,
                           std::abs(std::log2(static_cast<double>(point.block_bytes) / double{kUsualBlock})));
  };
  const SweepPoint* chosen = nullptr;
  for (const SweepPoint& point : sweep) {
    if (cost_of(point) > least * (1 + kScatter)) continue;
    if (chosen == nullptr || strangeness(point) < strangeness(*chosen)) chosen = &point;
  }
  return *chosen;
}

DriveResult bench_drive(const Options& options, const std::string& folder, const Callbacks& callbacks) {
  return DriveBench(options, folder, identify_drive(folder), callbacks).run();
}

}  // namespace sluice::nvme_bench
