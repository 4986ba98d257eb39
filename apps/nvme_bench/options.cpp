#include "apps/nvme_bench/options.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "apps/common/option_table.h"
#include "apps/common/version.h"
#include "engine/base/error.h"

namespace sluice::nvme_bench {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr double kLongestSeconds = 86400;

// The texts as given; commas split them.
struct Lists {
  std::vector<std::string> folders, traffic, block_sizes, depths, read_shares;
};

// "90", "90s", "10min", "2h" or a size.
SustainedGoal parse_goal(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"min", 60}, {"h", 3600}, {"s", 1}, {"", 1}};
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.size());
    if (number.find_first_not_of("0123456789.") != std::string_view::npos || number.empty()) continue;
    const double value = parse_real(number) * seconds;
    if (!(value > 0) || value > kLongestSeconds) break;
    return {.bytes = {}, .seconds = value};
  }
  if (text.find_first_not_of("0123456789.") == std::string_view::npos)
    throw Error(ErrorKind::usage, "'" + std::string(text) + "' must be above 0 and at most a day.");
  const uint64_t bytes = parse_size(text);
  if (bytes == 0) throw Error(ErrorKind::usage, "'" + std::string(text) + "' writes nothing.");
  return {.bytes = bytes};
}

OptionValue goal_value(std::optional<SustainedGoal>& goal) {
  return {.argument = "SECONDS|SIZE",
          .default_text = "",
          .implicit = "",
          .words = {},
          .assign = [&goal](std::string_view text) { goal = parse_goal(text); }};
}

OptionValue load_latency_value(std::optional<bool>& wanted) {
  OptionValue value = choice_value<std::optional<bool>>(
      wanted, {{"auto", std::nullopt}, {"true", true}, {"false", false}}, 3);
  value.implicit = "true";
  return value;
}

void add_where(OptionTable& table, Options& options, Lists& lists) {
  table.add("Where", {.name = "folder",
                      .value = list_value(lists.folders, "DIR[,DIR2]"),
                      .help = "a folder on each drive; default: this one",
                      .aliases = {"directory", "spill_dir"}});
  table.add("Where", {.name = "size",
                      .value = size_value(options.size, "as time and free space allow"),
                      .help = "of the test file on each drive",
                      .aliases = {"io_size"}});
}

void add_what(OptionTable& table, Options& options, Lists& lists) {
  const std::string group = "What";
  table.add(group, {.name = "quick",
                    .value = flag_value(options.quick),
                    .help = "about 10 seconds a drive: few sizes, short measurements",
                    .aliases = {}});
  table.add(group,
            {.name = "seconds",
             .value = real_value(options.seconds,
                                 {.minimum = 0, .maximum = kLongestSeconds, .ends = Range::Ends::open_above}),
             .help = "of each of the last measurements; 0: 5, with --quick 1",
             .aliases = {"runtime"}});
  table.add(group, {.name = "traffic",
                    .value = list_value(lists.traffic, "read,write,mixed"),
                    .help = "what to measure; default: all, which settings need",
                    .aliases = {"rw", "mode"}});
  table.add(group, {.name = "sustained",
                    .value = goal_value(options.sustained),
                    .help = "only write on and on, for a time (90, 10min) or so much (200GiB): what is left "
                            "when a drive's cache runs out. Leaves a tenth of the drive free",
                    .aliases = {}});
  table.add(group, {.name = "mixed",
                    .value = list_value(lists.read_shares, "SHARE[,SHARE]"),
                    .help = "measure mixes with this share of reads, too: 0.7",
                    .aliases = {"rwmixread"}});
  table.add(group, {.name = "load_latency",
                    .value = load_latency_value(options.load_latency),
                    .help = "measure what reads of 4 KiB wait under load; auto: unless --quick",
                    .aliases = {}});
  table.add(group, {.name = "block_size",
                    .value = list_value(lists.block_sizes, "SIZE[,SIZE]"),
                    .help = "of one transfer, 4 KiB to 2 MiB; default: 256 KiB to 2 MiB",
                    .aliases = {"bs"}});
  table.add(group, {.name = "depth",
                    .value = list_value(lists.depths, "SIZE[,SIZE]"),
                    .help = "bytes in flight on a drive; default: 2 MiB to 32 MiB",
                    .aliases = {"bytes_in_flight"}});
  table.add(group, {.name = "queue",
                    .value = choice_value<QueueChoice>(options.queue,
                                                       {{"auto", QueueChoice::automatic},
                                                        {"io_uring", QueueChoice::io_uring},
                                                        {"threads", QueueChoice::threads},
                                                        {"uring", QueueChoice::io_uring}},
                                                       3),
                    .help = "auto: the faster one",
                    .aliases = {"engine", "ioengine"}});
}

void add_output(OptionTable& table, Options& options, bool& version) {
  table.add("Output", {.name = "save",
                       .value = flag_value(options.save),
                       .help = "write the settings where the engine reads them (default: true)",
                       .aliases = {}});
  table.add("Output", {.name = "svg",
                       .value = text_value(options.svg, "FILE"),
                       .help = "draw rates over time and the distribution of latencies",
                       .aliases = {"plot"}});
  table.add("Output",
            {.name = "json", .value = flag_value(options.json), .help = "print JSON", .aliases = {}});
  table.add("Output",
            {.name = "version", .value = flag_value(version), .help = "print the version", .aliases = {}});
}

std::vector<std::string> split(const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  for (const std::string& text : texts) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      parts.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return parts;
}

std::vector<uint64_t> parse_sizes(const std::string& option, const std::vector<std::string>& texts,
                                  std::vector<uint64_t> unset, uint64_t most) {
  if (texts.empty()) return unset;
  std::vector<uint64_t> sizes;
  for (const std::string& text : split(texts)) {
    uint64_t size = 0;
    try {
      size = parse_size(text);
    } catch (const Error& error) {
      throw Error(error.kind(), option + ": " + error.what());
    }
    if (size < kIoAlignment || size > most || size % kIoAlignment != 0) {
      throw Error(ErrorKind::usage, option + ": '" + text + "' must be a multiple of 4 KiB, and at most " +
                                        size_text(most) + ".");
    }
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

std::vector<double> parse_shares(const std::vector<std::string>& texts) {
  std::vector<double> shares;
  for (const std::string& text : texts.empty() ? texts : split(texts)) {
    double share = 0;
    try {
      share = parse_real(text);
    } catch (const Error& error) {
      throw Error(error.kind(), std::string("--mixed: ") + error.what());
    }
    if (!(share > 0 && share < 1)) {
      throw Error(ErrorKind::usage, "--mixed: '" + text +
                                        "' is no share of reads: give a number between 0 and 1, such as 0.7. "
                                        "Reads and writes alone are measured anyway.");
    }
    shares.push_back(share);
  }
  return shares;
}

std::vector<Traffic> parse_traffic(const std::vector<std::string>& texts) {
  const std::vector<Traffic> all{Traffic::read, Traffic::write, Traffic::mixed};
  const std::vector<std::string> words{"read", "write", "mixed"};
  if (texts.empty()) return all;
  std::vector<Traffic> wanted;
  for (const std::string& text : split(texts)) {
    const auto word = std::find(words.begin(), words.end(), text);
    if (word == words.end()) {
      try {
        throw_no_such_word(text, words);
      } catch (const Error& error) {
        throw Error(error.kind(), std::string("--traffic: ") + error.what());
      }
    }
    wanted.push_back(all[static_cast<size_t>(word - words.begin())]);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

void fill_in(Options& options, const Lists& lists) {
  options.folders = split(lists.folders);
  if (options.folders.empty()) options.folders = {"."};
  for (const std::string& folder : options.folders)
    if (folder.empty()) throw Error(ErrorKind::usage, "--folder: '' is empty: it needs a name.");
  options.traffic = parse_traffic(lists.traffic);
  options.read_shares = parse_shares(lists.read_shares);
  const bool quick = options.quick;
  options.block_sizes = parse_sizes("--block_size", lists.block_sizes,
                                    quick ? std::vector<uint64_t>{512 * kKiB, kMiB, 2 * kMiB}
                                          : std::vector<uint64_t>{256 * kKiB, 512 * kKiB, kMiB, 2 * kMiB},
                                    kLargestBlock);
  options.depths =
      parse_sizes("--depth", lists.depths,
                  quick ? std::vector<uint64_t>{4 * kMiB, 8 * kMiB, 16 * kMiB}
                        : std::vector<uint64_t>{2 * kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB, 32 * kMiB},
                  1024 * kMiB);
  if (options.seconds == 0) options.seconds = quick ? 1 : 5;
}

// Where it is, or would be, a file: never a device, nor where a link leads.
void check_picture(const std::string& svg) {
  namespace fs = std::filesystem;
  if (svg.empty()) return;
  std::error_code error;
  const fs::file_status status = fs::symlink_status(svg, error);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw Error(ErrorKind::usage, "--svg: " + svg + " is there and is no file. Give another name.");
  const fs::path folder = fs::absolute(svg).parent_path();
  if (!fs::is_directory(folder, error))
    throw Error(ErrorKind::usage, "--svg: there is no folder " + folder.string() + ".");
}

// What no single option can tell.
void check(const Options& options) {
  if (options.largest_depth() / options.block_sizes.front() > kMostTransfers) {
    throw Error(ErrorKind::usage, "--depth: " + size_text(options.largest_depth()) + " in blocks of " +
                                      size_text(options.block_sizes.front()) + " are more than the " +
                                      std::to_string(kMostTransfers) +
                                      " transfers that may be in flight. Give a smaller --depth or a larger "
                                      "--block_size.");
  }
  if (options.depths.front() < options.largest_block()) {
    throw Error(ErrorKind::usage, "--depth: " + size_text(options.depths.front()) +
                                      " in flight hold no block of " + size_text(options.largest_block()) +
                                      ". Give at least the largest --block_size.");
  }
  // Mixed traffic reads one half and writes the other; each must hold all that is in flight.
  const uint64_t least = 4 * options.largest_depth();
  if (options.size && *options.size < least) {
    throw Error(ErrorKind::usage, "--size: " + size_text(*options.size) + " is too small for " +
                                      size_text(options.largest_depth()) + " in flight. Give at least " +
                                      size_text(least) + ", or a smaller --depth.");
  }
}

}  // namespace

bool Options::measures(Traffic wanted) const {
  return std::find(traffic.begin(), traffic.end(), wanted) != traffic.end();
}

std::variant<Text, Options> parse_options(std::span<const std::string> arguments) {
  Options options;
  Lists lists;
  bool version = false;
  OptionTable table(
      "nvme_bench", "nvme_bench [--folder DIR[,DIR2]] [--quick] [options]",
      "Measures what drives give the engine, and writes down the settings to use. Writes only to "
      "a file of\nits own in each folder, which is gone at the end.");
  add_where(table, options, lists);
  add_what(table, options, lists);
  add_output(table, options, version);
  if (table.parse(arguments) == OptionTable::Outcome::help_wanted) return Text{table.help()};
  check_picture(options.svg);
  if (version) return Text{"nvme_bench of Sluice " + std::string(kVersion) + "\n"};
  fill_in(options, lists);
  check(options);
  return options;
}

}  // namespace sluice::nvme_bench
