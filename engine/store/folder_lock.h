#pragma once

#include <filesystem>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "io/file.h"

namespace sluice {

// A folder that this process alone uses, from construction to destruction: flock on the file `lock` inside
// (made where it is missing), with the holder's pid in it. A process that dies gives it up, whatever its file
// still says; so does one that removed the file (to remove the folder). Makes the folder private
// (private_folder.h). Throws Error(usage) with the holder's pid where another process has it. A second
// FolderLock of the same process is refused, too.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // Whether `folder` is the same one, under whatever name.
  bool holds(const std::filesystem::path& folder) const;

 private:
  std::filesystem::path folder_;
  File file_;
  std::pair<dev_t, ino_t> identity_;  // of the lock file
};

// The folders that one process uses, each locked once however many stores of this process lie in it. Must
// outlive them. Single-threaded.
class FolderLocks {
 public:
  void lock(const std::filesystem::path& folder);

 private:
  std::vector<FolderLock> locks_;
};

}  // namespace sluice
