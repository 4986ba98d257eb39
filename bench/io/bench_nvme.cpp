// What the engine's queue gets out of a drive, against Debian's fio with huge pages and fixed buffers: the
// same file, the same blocks (1 MiB, 16 in flight), shuffled rounds of short runs. Each round runs this
// engine once and fio twice: fio against itself is the floor below which no ratio says anything.
//
//   bench_nvme [--full] [--folder DIR] [--seconds S] [--rounds N] [--queue io_uring|threads]
//
// Prints `ratio read_vs_fio R` and `ratio write_vs_fio R`, medians with their 95 % intervals. Ends with 1
// only where the upper end of an interval is below 0.95: then this engine is slower for certain. Without fio
// (apt-get install fio) it prints its own numbers. The file has no name, so nothing stays behind; reserved
// huge pages are given back.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "apps/common/interrupt.h"
#include "apps/common/option_table.h"
#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/measure.h"
#include "bench/support/median_interval.h"
#include "engine/base/error.h"
#include "io/aligned_buffer.h"
#include "io/make_io_queue.h"
#include "io/striped_file.h"
#include "tests/support/child_process.h"

namespace sluice::bench {
namespace {

using nvme_bench::Measurement;
using nvme_bench::Traffic;

constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kInFlight = 16;
constexpr uint64_t kFileBytes = uint64_t{2} << 30;
constexpr int kHugePages = 64;    // of 2 MiB: fio's 16 blocks, and room for its alignment
constexpr double kWidest = 0.08;  // of an interval that still says something
constexpr double kLeastRatio = 0.95;
// Without --full: where starting fio takes long, fewer rounds.
constexpr double kMostSeconds = 50;
constexpr int64_t kFewestRounds = 6;  // below that there is no interval

struct BenchOptions {
  bool full = false;
  std::string folder = ".";
  double seconds = 0;  // of a run; 0: 1, with --full 3
  int64_t rounds = 0;  // 0: 9, with --full 21
  IoChoice::Engine queue = IoChoice::Engine::automatic;
};

struct Interrupted {};

// While it lives, at least kHugePages are reserved; the number is as before afterwards.
class HugePages {
 public:
  HugePages() : before_(read_count()) {
    if (before_ < kHugePages) write_count(kHugePages);
    enough_ = read_count() >= kHugePages;
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages() {
    if (before_ >= 0 && before_ < kHugePages) write_count(before_);
  }
  bool enough() const { return enough_; }

 private:
  static constexpr const char* kFile = "/proc/sys/vm/nr_hugepages";
  static int read_count() {
    int count = -1;
    std::ifstream(kFile) >> count;
    return count;
  }
  static void write_count(int count) { std::ofstream(kFile) << count << std::flush; }

  int before_;
  bool enough_ = false;
};

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string folders = path != nullptr ? path : "";
  for (size_t begin = 0; begin < folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string file = folders.substr(begin, end - begin) + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return "";
}

// This engine and fio on one file, which was written before.
class Rivals {
 public:
  Rivals(const BenchOptions& options, const InterruptWatch& watch)
      : options_(options),
        watch_(watch),
        memory_(kBlock * kInFlight, "the transfers", AlignedBuffer::Fill::now),
        file_(StripedFile::create({{.path = nvme_bench::scratch_path(options.folder)}}, kFileBytes)) {
    file_.unlink();
    std::string note;
    queue_ = make_io_queue({.engine = options.queue,
                            .queue = {.capacity = static_cast<int>(kInFlight),
                                      .buffers = {memory_.bytes()},
                                      .descriptors = file_.descriptors()}},
                           &note);
    if (!note.empty()) std::printf("%s\n", note.c_str());
    if (file_.buffered()) {
      std::printf("no direct I/O, so these are not the drive's numbers: %s\n",
                  file_.buffered_reason().c_str());
    }
  }

  // Every block once, and some of them read back and compared.
  void write_file() {
    nvme_bench::fill_random(memory_.bytes(), 1);
    run_own(Traffic::write, {.transfers = kFileBytes / kBlock});
    file_.sync();
    nvme_bench::check_stamps(*queue_, walk(IoRequest::Kind::read), memory_.bytes());
    nvme_bench::fill_random(memory_.bytes(), 1);
  }

  double own_rate(Traffic traffic) {
    return run_own(traffic, {.seconds = options_.seconds}).bytes_per_second();
  }

  // Bytes per second.
  double fio_rate(const std::string& fio, Traffic traffic, bool huge_pages) {
    const std::string name(nvme_bench::name(traffic));
    // By its descriptor: the file has no name.
    const std::string file =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.descriptors()[0]);
    test::ChildProcess child(
        {fio, "--name=" + name, "--filename=" + file, "--size=" + std::to_string(kFileBytes), "--direct=1",
         "--ioengine=io_uring", huge_pages ? "--mem=mmaphuge" : "--mem=mmap", "--fixedbufs=1",
         "--bs=" + std::to_string(kBlock), "--iodepth=" + std::to_string(kInFlight), "--rw=" + name,
         "--overwrite=1", "--allow_file_create=0", "--scramble_buffers=0", "--time_based",
         "--runtime=" + std::to_string(static_cast<int>(options_.seconds * 1000)) + "ms",
         "--output-format=json"});
    const test::Outcome outcome = child.finish();
    check_interrupt();
    if (outcome.code != 0) throw Error(ErrorKind::runtime, "fio failed: " + outcome.err + outcome.out);
    const size_t begin = std::min(outcome.out.find('{'), outcome.out.size());
    const auto report = nlohmann::json::parse(outcome.out.substr(begin));
    return report.at("jobs").at(0).at(name).at("bw_bytes").get<double>();
  }

  std::string_view queue_name() const { return queue_->name(); }

 private:
  nvme_bench::Walk walk(IoRequest::Kind kind) const {
    return nvme_bench::walk_blocks(kind, file_.descriptors()[0], 0, kFileBytes, kBlock);
  }

  Measurement run_own(Traffic traffic, nvme_bench::Limits limits) {
    nvme_bench::Load load;
    if (traffic == Traffic::read) load.reads = walk(IoRequest::Kind::read);
    if (traffic == Traffic::write) load.writes = walk(IoRequest::Kind::write);
    load.block_bytes = kBlock;
    load.bytes_in_flight = kBlock * kInFlight;
    limits.stop = [this] { return watch_.signal_number() != 0; };
    Measurement measurement = nvme_bench::measure(*queue_, load, memory_.bytes(), limits);
    check_interrupt();
    return measurement;
  }

  void check_interrupt() const {
    if (watch_.signal_number() != 0) throw Interrupted{};
  }

  const BenchOptions& options_;
  const InterruptWatch& watch_;
  AlignedBuffer memory_;
  StripedFile file_;
  std::unique_ptr<IoQueue> queue_;
};

void print_own(Rivals& rivals, Traffic traffic, int64_t rounds) {
  std::vector<double> rates;
  for (int64_t round = 0; round < rounds; ++round) rates.push_back(rivals.own_rate(traffic) * 1e-9);
  const MedianInterval rate = median_interval(rates);
  std::printf("%s: %.2f GB/s [%.2f, %.2f]\n", std::string(nvme_bench::name(traffic)).c_str(), rate.median,
              rate.low, rate.high);
}

// False where this engine is slower for certain.
bool compare(Rivals& rivals, const std::string& fio, bool huge_pages, Traffic traffic,
             const BenchOptions& options) {
  const std::string name(nvme_bench::name(traffic));
  enum { own, first_fio, second_fio };
  std::array<std::vector<double>, 3> rates;
  std::array<int, 3> order{own, first_fio, second_fio};
  std::mt19937_64 random(1);
  std::vector<double> ratios, floors;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t round = 0; round < options.rounds; ++round) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (!options.full && round >= kFewestRounds && elapsed.count() > kMostSeconds) break;
    std::shuffle(order.begin(), order.end(), random);
    for (const int who : order) {
      rates[static_cast<size_t>(who)].push_back(who == own ? rivals.own_rate(traffic)
                                                           : rivals.fio_rate(fio, traffic, huge_pages));
    }
    ratios.push_back(rates[own].back() / rates[first_fio].back());
    floors.push_back(rates[second_fio].back() / rates[first_fio].back());
  }
  const MedianInterval ratio = median_interval(ratios), floor = median_interval(floors);
  std::printf("%s: this engine %.2f GB/s, fio %.2f GB/s (medians of %d rounds)\n", name.c_str(),
              median_interval(rates[own]).median * 1e-9, median_interval(rates[first_fio]).median * 1e-9,
              static_cast<int>(ratios.size()));
  std::printf("%s: fio against itself %.3f [%.3f, %.3f]\n", name.c_str(), floor.median, floor.low,
              floor.high);
  std::printf("ratio %s_vs_fio %.3f\n", name.c_str(), ratio.median);
  const bool is_slower = ratio.high < kLeastRatio;
  const char* verdict = is_slower                    ? "slower than 0.95 of fio"
                        : ratio.width() > kWidest    ? "inconclusive, the interval is wider than 8 %"
                        : ratio.median < kLeastRatio ? "below 0.95, not for certain"
                                                     : "ok";
  std::printf("%s: 95 %% interval [%.3f, %.3f]: %s\n", name.c_str(), ratio.low, ratio.high, verdict);
  std::fflush(stdout);
  return !is_slower;
}

BenchOptions parse(int argc, char** argv) {
  using Engine = IoChoice::Engine;
  BenchOptions options;
  OptionTable table("bench_nvme", "bench_nvme [options]", "Compares the engine's transfers with fio's.");
  table.add("Bench", {.name = "full", .value = flag_value(options.full), .help = "more, longer rounds"});
  table.add("Bench", {.name = "folder", .value = text_value(options.folder, "DIR"), .help = "on the drive"});
  table.add("Bench", {.name = "seconds",
                      .value = real_value(options.seconds, {.minimum = 0, .maximum = 3600}),
                      .help = "of a run; 0: 1, with --full 3"});
  table.add("Bench", {.name = "rounds",
                      .value = integer_value(options.rounds, {.minimum = 0, .maximum = 10000}),
                      .help = "0: 9, with --full 21"});
  table.add(
      "Bench",
      {.name = "queue",
       .value = choice_value<Engine>(
           options.queue,
           {{"auto", Engine::automatic}, {"io_uring", Engine::io_uring}, {"threads", Engine::threads}}, 3),
       .help = "of this engine"});
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (table.parse(arguments) == OptionTable::Outcome::help_wanted) {
    std::printf("%s", table.help().c_str());
    std::exit(0);
  }
  if (options.seconds == 0) options.seconds = options.full ? 3 : 1;
  if (options.rounds == 0) options.rounds = options.full ? 21 : 9;
  return options;
}

// Both rivals before all others (fio inherits it), so that they wait for the drive and not for a core: beside
// jobs that take all cores either may seem twice as fast as the other.
void raise_priority() {
  constexpr int kFirst = -20;
  if (::setpriority(PRIO_PROCESS, 0, kFirst) != 0)
    std::printf("no right to a higher priority: on a busy machine these ratios say little\n");
}

int run(const BenchOptions& options, const InterruptWatch& watch) {
  raise_priority();
  Rivals rivals(options, watch);
  std::printf("%s, blocks of 1 MiB, %d in flight, %s\n", describe(identify_drive(options.folder)).c_str(),
              static_cast<int>(kInFlight), std::string(rivals.queue_name()).c_str());
  rivals.write_file();
  const std::string fio = find_program("fio");
  if (fio.empty()) {
    std::printf("fio is not installed (apt-get install fio): nothing to compare with\n");
    for (const Traffic traffic : {Traffic::read, Traffic::write}) print_own(rivals, traffic, options.rounds);
    return 0;
  }
  const HugePages pages;
  if (!pages.enough()) {
    std::printf(
        "64 huge pages cannot be reserved (not root, or no room): fio runs with --mem=mmap, below its "
        "best\n");
  }
  bool good = true;
  for (const Traffic traffic : {Traffic::read, Traffic::write})
    good = compare(rivals, fio, pages.enough(), traffic, options) && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice;
  try {
    const bench::BenchOptions options = bench::parse(argc, argv);
    const InterruptWatch watch;
    try {
      return bench::run(options, watch);
    } catch (const bench::Interrupted&) {
      return interrupt_exit_code(watch.signal_number());
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_nvme: %s\n", error.what());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_nvme: %s\n", error.what());
    return 1;
  }
}
