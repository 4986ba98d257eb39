#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/nvme_bench/drive_bench.h"

namespace sluice::nvme_bench {

// For each measurement of a drive its name and the command that has fio 3.30 do the same, in a file of its
// own beside, which fio removes.
std::vector<std::pair<std::string, std::string>> fio_lines(const DriveResult& result, const Options& options);

}  // namespace sluice::nvme_bench
