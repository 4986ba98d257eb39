#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "apps/nvme_bench/measure.h"

namespace sluice::nvme_bench {

enum class QueueChoice { automatic, io_uring, threads };

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
  bool save = true;  // the settings, where the engine reads them
  bool json = false;

  uint64_t largest_block() const { return block_sizes.back(); }
  uint64_t largest_depth() const { return depths.back(); }
  bool measures(Traffic wanted) const;
};

// Larger requests are cut by StripedFile, so the engine would not send them.
inline constexpr uint64_t kLargestBlock = uint64_t{2} << 20;
// Transfers in flight on one drive.
inline constexpr uint64_t kMostTransfers = 1024;

// Help or the version, to print.
struct Text {
  std::string text;
};

// `arguments` are those behind the program's name. Throws Error(usage).
std::variant<Text, Options> parse_options(std::span<const std::string> arguments);

}  // namespace sluice::nvme_bench
