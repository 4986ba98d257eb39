#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/nvme_bench/smart_log.h"

namespace sluice::nvme_bench {

// Temperature and wear of a drive at one moment, as far as they can be read.
struct Health {
  std::string device;                         // "nvme0"; of other drives their disk: "sda"
  std::optional<double> temperature_celsius;  // of the kernel's sensor, else of the log
  std::optional<SmartLog> log;
  std::string reason;  // why there is no log; empty where there is one
};

// Where the kernel shows devices; tests have folders of their own.
struct DeviceFolders {
  std::filesystem::path sys = "/sys";
  std::filesystem::path dev = "/dev";
};

// Of each drive that a disk ("nvme0n1", "dm-0") lies on: a logical volume or RAID may have several. Empty
// without a disk. Nothing is written to a device: the log is read by the admin command Get Log Page on a
// descriptor that cannot write. Never throws for what cannot be read.
std::vector<Health> read_health(const std::string& disk, const DeviceFolders& folders = {});

// "nvme0: 41 -> 58 C, 3 % of its life used, spare 100 %, 12.3 TB written in its life, 204 GB of it now".
std::string health_text(const Health& before, const Health& after);

}  // namespace sluice::nvme_bench
