#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "apps/nvme_bench/measure.h"

namespace sluice::nvme_bench {

enum class QueueChoice { automatic, io_uring, threads };

// How long to write on and on: until so many bytes are written, else for a time.
struct SustainedGoal {
  std::optional<uint64_t> bytes;
  double seconds = 0;
};

// What `nvme_bench` was asked to do: checked values, defaults filled in. Nothing here opens a file.
struct Options {
  std::vector<std::string> folders;  // one a drive, at least one
  bool quick = false;
  std::vector<Traffic> traffic;       // in the order of the enum, each once
  std::vector<uint64_t> block_sizes;  // bytes, ascending
  std::vector<uint64_t> depths;       // bytes in flight on one drive, ascending
  std::optional<uint64_t> size;       // of the test file on each drive; empty: as free space and time allow
  double seconds = 0;                 // of each of the last measurements
  QueueChoice queue = QueueChoice::automatic;
  std::optional<SustainedGoal> sustained;  // then nothing else is measured
  std::vector<double> read_shares;         // of mixes to measure besides the half and half; in (0, 1)
  std::optional<bool> load_latency;        // empty: unless `quick`
  std::string svg;                         // a file to draw into; empty: none
  bool save = true;                        // the settings, where the engine reads them
  bool json = false;

  uint64_t largest_block() const { return block_sizes.back(); }
  uint64_t largest_depth() const { return depths.back(); }
  // The usual ones, or the nearest that were given.
  size_t usual_block() const { return std::clamp(kUsualBlock, block_sizes.front(), largest_block()); }
  size_t usual_depth() const { return std::clamp(kUsualDepth, depths.front(), largest_depth()); }
  bool measures(Traffic wanted) const;
  bool measures_load() const { return load_latency.value_or(!quick); }
};

// Transfers in flight on one drive.
inline constexpr uint64_t kMostTransfers = 1024;

// Help or the version, to print.
struct Text {
  std::string text;
};

// `arguments` are those behind the program's name. Throws Error(usage).
std::variant<Text, Options> parse_options(std::span<const std::string> arguments);

}  // namespace sluice::nvme_bench
