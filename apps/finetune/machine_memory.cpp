#include "apps/finetune/machine_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace sluice::finetune {
namespace {

// A line "KEY:  N kB" of /proc/meminfo, in bytes; a machine without it has no limit that we know of.
size_t meminfo_bytes(std::string_view key) {
  std::ifstream in("/proc/meminfo");
  size_t kib = 0;
  for (std::string name, unit; in >> name >> kib && std::getline(in, unit);) {
    if (name == std::string(key) + ":") return kib * 1024;
  }
  return std::numeric_limits<size_t>::max();
}

size_t group_limit_bytes() {
  std::ifstream in("/sys/fs/cgroup/memory.max");  // "max" where there is none
  size_t limit = 0;
  return in >> limit ? limit : std::numeric_limits<size_t>::max();
}

}  // namespace

size_t machine_memory_bytes() {
  return std::min(meminfo_bytes("MemTotal"), group_limit_bytes());
}

size_t available_memory_bytes() {
  return std::min(meminfo_bytes("MemAvailable"), group_limit_bytes());
}

}  // namespace sluice::finetune
