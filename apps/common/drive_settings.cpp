#include "apps/common/drive_settings.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "io/file.h"
#include "io/io_queue.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kVersion = 1;
constexpr uint64_t kLargestFile = uint64_t{1} << 20;
constexpr uint64_t kLargestTransfer = uint64_t{1} << 30;
constexpr uint64_t kMostInFlight = uint64_t{1} << 36;
constexpr double kFastest = 1e13;  // bytes per second: beyond any drive, so a damaged number

fs::path home() {
  if (const char* folder = std::getenv("HOME"); folder != nullptr && *folder == '/') return folder;
  const passwd* user = ::getpwuid(::getuid());
  return user != nullptr && user->pw_dir != nullptr && *user->pw_dir == '/' ? user->pw_dir : "";
}

// The file as a whole; empty where it is missing or is not what this program writes.
json read_entries(const fs::path& file) {
  try {
    const json all = json::parse(read_text_file(file, kLargestFile));
    if (all.is_object() && all.value("version", json()) == kVersion && all.contains("drives") &&
        all["drives"].is_object()) {
      return all["drives"];
    }
  } catch (const Error&) {
  } catch (const json::exception&) {
  }
  return json::object();
}

bool is_size(uint64_t bytes, uint64_t most) {
  return bytes >= kIoAlignment && bytes <= most && bytes % kIoAlignment == 0;
}

bool is_rate(double rate) {
  return std::isfinite(rate) && rate > 0 && rate < kFastest;
}

bool is_likely(const DriveSettings& settings) {
  const auto is_cost = [](double seconds) { return std::isfinite(seconds) && seconds >= 0 && seconds < 1e6; };
  return (settings.queue == "io_uring" || settings.queue == "threads") &&
         is_size(settings.block_bytes, kLargestTransfer) &&
         is_size(settings.bytes_in_flight, kMostInFlight) &&
         settings.bytes_in_flight >= settings.block_bytes && is_rate(settings.read_bytes_per_second) &&
         is_rate(settings.write_bytes_per_second) && is_rate(settings.mixed_bytes_per_second) &&
         is_cost(settings.read_cpu_seconds_per_gb) && is_cost(settings.write_cpu_seconds_per_gb) &&
         settings.measured_at.size() <= 64;
}

json to_json(const Drive& drive, const DriveSettings& settings) {
  return {{"drive", describe(drive)},
          {"queue", settings.queue},
          {"block_bytes", settings.block_bytes},
          {"bytes_in_flight", settings.bytes_in_flight},
          {"read_bytes_per_second", settings.read_bytes_per_second},
          {"write_bytes_per_second", settings.write_bytes_per_second},
          {"mixed_bytes_per_second", settings.mixed_bytes_per_second},
          {"read_cpu_seconds_per_gb", settings.read_cpu_seconds_per_gb},
          {"write_cpu_seconds_per_gb", settings.write_cpu_seconds_per_gb},
          {"measured_at", settings.measured_at}};
}

// Throws json::exception for other types. A negative or fractional size is one: get<uint64_t> would wrap it.
DriveSettings from_json(const json& entry) {
  const auto size = [&](const char* name) {
    const json& value = entry.at(name);
    return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
  };
  DriveSettings settings;
  settings.queue = entry.at("queue").get<std::string>();
  settings.block_bytes = size("block_bytes");
  settings.bytes_in_flight = size("bytes_in_flight");
  settings.read_bytes_per_second = entry.at("read_bytes_per_second").get<double>();
  settings.write_bytes_per_second = entry.at("write_bytes_per_second").get<double>();
  settings.mixed_bytes_per_second = entry.at("mixed_bytes_per_second").get<double>();
  settings.read_cpu_seconds_per_gb = entry.at("read_cpu_seconds_per_gb").get<double>();
  settings.write_cpu_seconds_per_gb = entry.at("write_cpu_seconds_per_gb").get<double>();
  settings.measured_at = entry.at("measured_at").get<std::string>();
  return settings;
}

// Between reading the file and replacing it nobody else may do so. The lock is on the folder, so that no
// lock file stays behind.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ < 0) throw_file_error("open", folder, errno);
    int result;
    do {
      result = ::flock(descriptor_, LOCK_EX);
    } while (result != 0 && errno == EINTR);
    // A network file system may know no locks. Then two benches at once may lose one entry, of a cache.
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { ::close(descriptor_); }

 private:
  int descriptor_;
};

void make_private_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) throw_file_error("make", folder, errno);
}

}  // namespace

fs::path drive_settings_path() {
  // The XDG base directory specification: a relative path is to be ignored.
  const char* given = std::getenv("XDG_CACHE_HOME");
  fs::path cache = given != nullptr && *given == '/' ? given : "";
  if (cache.empty()) {
    cache = home();
    if (cache.empty()) return {};
    cache /= ".cache";
  }
  return cache / "sluice" / "drives.json";
}

std::optional<DriveSettings> find_drive_settings(const fs::path& folder) {
  return load_drive_settings(drive_settings_path(), identify_drive(folder));
}

std::optional<DriveSettings> load_drive_settings(const fs::path& file, const Drive& drive) {
  if (file.empty()) return std::nullopt;
  const json entries = read_entries(file);
  const auto entry = entries.find(drive.key);
  if (entry == entries.end()) return std::nullopt;
  try {
    DriveSettings settings = from_json(*entry);
    if (is_likely(settings)) return settings;
  } catch (const json::exception&) {
  }
  return std::nullopt;
}

void save_drive_settings(const fs::path& file, const Drive& drive, const DriveSettings& settings) {
  SLUICE_CHECK(is_likely(settings));
  make_private_folder(file.parent_path());
  const FolderLock lock(file.parent_path());
  json entries = read_entries(file);
  entries[drive.key] = to_json(drive, settings);
  const json all{{"version", kVersion}, {"drives", std::move(entries)}};
  // Names of file systems and drives may hold any byte; JSON may not.
  write_file_atomically(file, all.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace sluice
