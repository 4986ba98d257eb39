#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice {

// Files that appear in a folder only when all of them are whole. They are written into `OUTPUT/.partial-PID`
// (inside, so that it is on the same file system even where OUTPUT is a mount point) and renamed, one by one,
// by publish(). Unless published, the destructor removes what was written, and OUTPUT itself if this object
// made it. A process that is killed leaves only the hidden folder behind; files of OUTPUT are never
// half-written.
class StagedFolder {
 public:
  explicit StagedFolder(std::filesystem::path output);
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;
  ~StagedFolder();

  // Where to write the file that will be OUTPUT/`name` (a plain file name).
  std::filesystem::path path_of(const std::string& name) const { return staging_ / name; }
  // Renames the files in the order given, replacing older ones, and syncs the folder. Name last the file
  // without which readers refuse the folder: if the process dies between two renames, the folder is then
  // refused as a whole.
  void publish(const std::vector<std::string>& names);

 private:
  std::filesystem::path output_;
  std::filesystem::path staging_;
  std::filesystem::path created_;  // topmost folder that was made for OUTPUT; empty if it was there
  bool published_ = false;
};

}  // namespace sluice
