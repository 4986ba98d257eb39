#pragma once

#include <map>
#include <vector>

#include "apps/nvme_bench/measure.h"

namespace sluice::nvme_bench {

struct Options;
struct DriveResult;
struct Callbacks;

// Several drives at once, with the settings found for each.
struct TogetherResult {
  // Each with its own load in its own thread, at the same time: (drive). What they lose against being alone
  // is the bus's or the processor's doing. CPU seconds are of all together.
  std::vector<std::map<Traffic, Measurement>> beside;
  // One file striped over all, each drive weighted by its speed: what a run gets.
  std::map<Traffic, Measurement> striped;
  bool interrupted = false;  // what is missing was not measured
};

TogetherResult bench_together(const Options& options, const std::vector<DriveResult>& drives,
                              const Callbacks& callbacks);

}  // namespace sluice::nvme_bench
