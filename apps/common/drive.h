#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace sluice {

// What lies behind a folder. A value.
struct Drive {
  enum class Kind {
    block_device,  // a drive, a partition, a logical volume
    memory,        // tmpfs, ramfs, or a RAM disk: fast, and no drive
    network,       // NFS, CIFS, 9p ...: whose drive it is cannot be seen from here
    unknown        // FUSE, overlays, ZFS: files, and no block device that counts
  };

  std::string key;          // the file system's: device number, then its id or else the mount point
  std::string file_system;  // "ext4"
  std::string mount_point;
  std::string source;  // "/dev/nvme0n1p2", as it was mounted
  Kind kind = Kind::unknown;
  std::string disk;                     // "nvme0n1"; empty without a block device
  std::string model;                    // as the disk calls itself; often empty in a virtual machine
  std::optional<dev_t> counted_device;  // whose traffic /sys/dev/block/MAJOR:MINOR/stat counts
};

// Throws Error(usage) where there is no such folder.
Drive identify_drive(const std::filesystem::path& folder);

// "nvme0n1 (Samsung SSD 990 PRO), ext4 at /work".
std::string describe(const Drive& drive);

// One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
struct Mount {
  int id = 0;
  std::string mount_point, file_system, source;
};
// Empty where the line is damaged.
std::optional<Mount> parse_mount(std::string_view line);

}  // namespace sluice
