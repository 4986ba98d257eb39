#include "apps/nvme_bench/fio_lines.h"

#include <algorithm>
#include <cmath>

namespace sluice::nvme_bench {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string kib(uint64_t bytes) {
  return std::to_string(bytes >> 10) + "k";
}

std::string runtime(double seconds) {
  return " --time_based --runtime=" + std::to_string(std::max<int64_t>(1, std::llround(seconds)));
}

// Jobs of one command, in one file. What stands before the first --name is all jobs'.
class Command {
 public:
  Command(const DriveResult& result, const std::string& shared)
      : result_(result),
        text_("fio --filename=" + quoted((std::filesystem::path(result.folder) / "sluice-fio.dat").string()) +
              " --size=" + kib(result.file_bytes) + " --direct=1 --unlink=1" + shared) {}

  Command& add(const std::string& name, const std::string& what) {
    text_ += " --name=" + name + what;
    return *this;
  }
  Command& add_load(const std::string& name, const std::string& traffic, const std::string& more = "") {
    const uint64_t block = result_.chosen.block_bytes, count = result_.chosen.bytes_in_flight / block;
    // fio's psync has one transfer in flight a thread, as our queue of threads.
    const std::string depth = result_.queue == "threads"
                                  ? " --ioengine=psync --thread --group_reporting --numjobs=" +
                                        std::to_string(std::min<uint64_t>(count, 4))
                                  : " --ioengine=io_uring --iodepth=" + std::to_string(count);
    return add(name, depth + " --bs=" + kib(block) + " --rw=" + traffic + more);
  }
  const std::string& text() const { return text_; }

 private:
  const DriveResult& result_;
  std::string text_;
};

std::string rw(const std::string& traffic) {
  return traffic == "mixed" ? "rw" : traffic;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fio_lines(const DriveResult& result,
                                                           const Options& options) {
  std::vector<std::pair<std::string, std::string>> lines;
  if (result.chosen.block_bytes == 0 || result.file_bytes == 0) return lines;
  const auto add = [&](const std::string& name, const Command& command) {
    lines.emplace_back(name, command.text());
  };
  // The file is written before it is measured, as ours is.
  const std::string timed = " --overwrite=1" + runtime(options.seconds);
  for (const auto& [traffic, measurement] : result.measurements) {
    const std::string is(name(traffic));
    add(is, Command(result, timed).add_load(is, rw(is)));
  }
  for (const MixedRate& mix : result.mixes) {
    const std::string percent = std::to_string(std::lround(mix.read_share * 100));
    add("mixed_" + percent, Command(result, timed).add_load("mixed", "rw", " --rwmixread=" + percent));
  }
  for (const LoadedLatency& loaded : result.loaded) {
    Command command(result, " --overwrite=1" + runtime(options.seconds / 2));
    if (loaded.load != kNoLoad) command.add_load("load", rw(loaded.load));
    command.add("probe", " --ioengine=io_uring --iodepth=1 --bs=" + kib(kProbeBytes) + " --rw=randread");
    add("latency_" + loaded.load, command);
  }
  if (result.sustained) {
    const SustainedGoal& goal = options.sustained.value();
    const std::string until = goal.bytes ? " --io_size=" + kib(*goal.bytes) : runtime(goal.seconds);
    add("sustained", Command(result, until + " --status-interval=1").add_load("sustained", "write"));
  }
  return lines;
}

}  // namespace sluice::nvme_bench
