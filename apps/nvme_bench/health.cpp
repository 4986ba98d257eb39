#include "apps/nvme_bench/health.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <linux/nvme_ioctl.h>
#include <set>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "engine/base/error.h"
#include "io/file.h"

namespace sluice::nvme_bench {
namespace {

namespace fs = std::filesystem;

// "nvme" and a number.
bool is_controller(const std::string& name) {
  constexpr std::string_view kPrefix = "nvme";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// The disks that a volume is made of, itself where it is one.
void add_disks(const fs::path& sys, const std::string& disk, std::set<std::string>& found, int depth = 0) {
  constexpr int kDeepest = 8;
  std::vector<std::string> below;
  if (depth < kDeepest) below = names_in(sys / "block" / disk / "slaves");
  for (std::string& name : below) {
    // A partition is found below its disk only.
    std::error_code error;
    const fs::path folder = fs::canonical(sys / "class/block" / name, error);
    if (!error && fs::exists(folder / "partition", error)) name = folder.parent_path().filename();
    add_disks(sys, name, found, depth + 1);
  }
  if (below.empty()) found.insert(disk);
}

// The controller of "nvme0n1"; with multipath, one of its subsystem's. Empty for other drives.
std::string controller_of(const fs::path& sys, const std::string& disk) {
  std::error_code error;
  const fs::path device = fs::canonical(sys / "block" / disk / "device", error);
  if (error) return "";
  if (is_controller(device.filename())) return device.filename();
  if (!device.filename().string().starts_with("nvme-subsys")) return "";
  for (const std::string& name : names_in(device))
    if (is_controller(name)) return name;
  return "";
}

std::optional<double> sensor_celsius(const fs::path& device) {
  // Depending on the kernel the sensor is below the device, or below its folder `hwmon`.
  for (const fs::path& folder : {device, device / "hwmon"}) {
    for (const std::string& name : names_in(folder)) {
      if (!name.starts_with("hwmon") || name == "hwmon") continue;
      std::ifstream in(folder / name / "temp1_input");  // thousandths (Documentation/hwmon/sysfs-interface)
      if (long value = 0; in >> value) return static_cast<double>(value) * 1e-3;
    }
  }
  return std::nullopt;
}

// Get Log Page (NVM Express Base Specification 2.0c, 5.16): opcode 02h; page, and the number of 4-byte words
// less one, in command dword 10; all namespaces.
std::string read_log(const fs::path& node, std::array<std::byte, SmartLog::kBytes>& page) {
  const int descriptor = ::open(node.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return "cannot open " + node.string() + ": " + errno_text(errno);
  const File file = File::adopt(node, descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISCHR(info.st_mode)) return node.string() + " is no device";
  nvme_admin_cmd command{};
  command.opcode = 0x02;
  command.nsid = 0xffffffff;
  command.addr = reinterpret_cast<uintptr_t>(page.data());
  command.data_len = SmartLog::kBytes;
  command.cdw10 = ((SmartLog::kBytes / 4 - 1) << 16) | 0x02;
  const int result = ::ioctl(descriptor, NVME_IOCTL_ADMIN_CMD, &command);
  if (result == 0) return "";
  if (result > 0) return node.string() + " answers with the NVMe status " + std::to_string(result);
  return "cannot ask " + node.string() + ": " + errno_text(errno) +
         (errno == EACCES || errno == EPERM ? " (root may)" : "");
}

Health health_of(const std::string& disk, const DeviceFolders& folders) {
  const std::string controller = controller_of(folders.sys, disk);
  if (controller.empty()) {
    return {.device = disk,
            .temperature_celsius = sensor_celsius(folders.sys / "block" / disk / "device"),
            .log = {},
            .reason = disk + " is no NVMe drive, the only kind whose SMART log is read here"};
  }
  Health health{.device = controller,
                .temperature_celsius = sensor_celsius(folders.sys / "class/nvme" / controller),
                .log = {},
                .reason = {}};
  std::array<std::byte, SmartLog::kBytes> page{};
  health.reason = read_log(folders.dev / controller, page);
  if (!health.reason.empty()) return health;
  health.log = parse_smart_log(page);
  if (!health.temperature_celsius) health.temperature_celsius = health.log->temperature_celsius;
  return health;
}

std::string decimal_size(double bytes) {
  constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g %s", bytes, kUnits[unit]);
  return text.data();
}

}  // namespace

std::vector<Health> read_health(const std::string& disk, const DeviceFolders& folders) {
  if (disk.empty()) return {};
  std::set<std::string> disks;
  add_disks(folders.sys, disk, disks);
  std::vector<Health> all;
  for (const std::string& each : disks) all.push_back(health_of(each, folders));
  return all;
}

std::string health_text(const Health& before, const Health& after) {
  std::string text = after.device + ":";
  const auto celsius = [](const std::optional<double>& value) {
    return value ? std::to_string(static_cast<int>(*value + 0.5)) : std::string("?");
  };
  if (after.temperature_celsius) {
    text.append(" ").append(celsius(before.temperature_celsius)).append(" -> ");
    text.append(celsius(after.temperature_celsius)).append(" C,");
  }
  if (!after.log) return text + " no SMART log: " + after.reason;
  const SmartLog& log = *after.log;
  text.append(" ").append(std::to_string(log.used_percent)).append(" % of its life used, spare ");
  text.append(std::to_string(log.available_spare_percent)).append(" %, ");
  text.append(decimal_size(log.written_bytes().to_double())).append(" written in its life");
  if (before.log) {
    text +=
        ", " + decimal_size((log.written_bytes() - before.log->written_bytes()).to_double()) + " of it now";
  }
  if (log.media_errors != WideCount{}) text += ", " + log.media_errors.decimal() + " media errors";
  if (const std::string warnings = log.warnings(); !warnings.empty()) text += "; WARNING: " + warnings;
  return text;
}

}  // namespace sluice::nvme_bench
