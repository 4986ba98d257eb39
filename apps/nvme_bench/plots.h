#pragma once

#include <string>

#include "apps/nvme_bench/report.h"

namespace sluice::nvme_bench {

// The report as a picture (svg_picture): for each drive, and for all together, GB/s over time and the
// distribution of latencies.
std::string report_svg(const Report& report);

}  // namespace sluice::nvme_bench
