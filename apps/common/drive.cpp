#include "apps/common/drive.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "engine/base/error.h"
#include "io/file.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// "\040" -> " ": the kernel writes blanks and backslashes of paths in octal.
std::string unescape(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::optional<Mount> find_mount(uint64_t id) {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const std::optional<Mount> mount = parse_mount(line);
    if (mount && mount->id >= 0 && static_cast<uint64_t>(mount->id) == id) return mount;
  }
  return std::nullopt;
}

std::string device_text(dev_t device) {
  return std::to_string(major(device)) + ":" + std::to_string(minor(device));
}

fs::path system_folder(dev_t device) {
  return fs::path("/sys/dev/block") / device_text(device);
}

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  line.erase(line.find_last_not_of(" \t\n") + 1);
  return line;
}

std::string hexadecimal(const void* data, size_t size) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    const unsigned byte = static_cast<const unsigned char*>(data)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string key_of(dev_t device, const struct statfs& system, const std::string& mount_point) {
  const std::string id = hexadecimal(&system.f_fsid, sizeof system.f_fsid);
  const bool has_id = id.find_first_not_of('0') != std::string::npos;
  return device_text(device) + " " + (has_id ? id : mount_point);
}

bool is_any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Of a partition, the disk that it lies on.
fs::path disk_folder(dev_t device) {
  std::error_code error;
  const fs::path folder = fs::canonical(system_folder(device), error);
  if (error) return {};
  return fs::exists(folder / "partition", error) ? folder.parent_path() : folder;
}

void find_disk(Drive& drive, dev_t device) {
  std::error_code error;
  if (fs::exists(system_folder(device), error)) drive.counted_device = device;
  // btrfs numbers its volumes itself; what it was mounted from is a block device all the same.
  struct stat source {};
  dev_t block = device;
  if (!drive.counted_device) {
    if (::stat(drive.source.c_str(), &source) != 0 || !S_ISBLK(source.st_mode)) return;
    block = source.st_rdev;
  }
  const fs::path folder = disk_folder(block);
  if (folder.empty()) return;
  drive.kind = Drive::Kind::block_device;
  drive.disk = folder.filename();
  drive.model = first_line(folder / "device" / "model");
  if (drive.disk.starts_with("zram") || drive.disk.starts_with("ram")) drive.kind = Drive::Kind::memory;
}

}  // namespace

std::optional<Mount> parse_mount(std::string_view line) {
  // ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS [TAG ...] - TYPE SOURCE OPTIONS
  std::istringstream in{std::string(line)};
  Mount mount;
  std::string parent, device, root, word;
  if (!(in >> mount.id >> parent >> device >> root >> word)) return std::nullopt;
  mount.mount_point = unescape(word);
  while (in >> word && word != "-") {
  }
  if (!(in >> mount.file_system >> word)) return std::nullopt;
  mount.source = unescape(word);
  return mount;
}

Drive identify_drive(const fs::path& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0)
    throw Error(ErrorKind::usage, "cannot use the folder " + folder.string() + ": " + errno_text(errno));
  if (!S_ISDIR(info.st_mode)) throw Error(ErrorKind::usage, folder.string() + " is not a folder.");
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) throw_file_error("examine", folder, errno);

  Drive drive;
  struct statx extended {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, STATX_MNT_ID, &extended) == 0 &&
      (extended.stx_mask & STATX_MNT_ID) != 0) {
    if (const std::optional<Mount> mount = find_mount(extended.stx_mnt_id)) {
      drive.mount_point = mount->mount_point;
      drive.file_system = mount->file_system;
      drive.source = mount->source;
    }
  }
  drive.key = key_of(info.st_dev, system, drive.mount_point);
  if (is_any_of(drive.file_system, {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})) {
    drive.kind = Drive::Kind::memory;
  } else if (is_any_of(drive.file_system, {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "afs",
                                           "virtiofs", "vboxsf"})) {
    drive.kind = Drive::Kind::network;
  } else {
    find_disk(drive, info.st_dev);
  }
  return drive;
}

std::string describe(const Drive& drive) {
  std::string text = drive.disk.empty() ? "no block device" : drive.disk;
  if (!drive.model.empty()) text += " (" + drive.model + ")";
  text += ", " + (drive.file_system.empty() ? "an unknown file system" : drive.file_system);
  if (!drive.mount_point.empty()) text += " at " + drive.mount_point;
  return text;
}

}  // namespace sluice
