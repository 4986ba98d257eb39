#include "engine/store/folder_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/store/private_folder.h"

namespace sluice {
namespace {

// What tells the processes of this system from those of a container on it, or of another machine whose folder
// this is as well: their pids say nothing here.
std::string pid_space() {
  std::array<char, 64> space{};
  const ssize_t length = ::readlink("/proc/self/ns/pid", space.data(), space.size());
  struct utsname system {};
  const std::string host = ::uname(&system) == 0 ? system.nodename : "?";
  return std::string(space.data(), static_cast<size_t>(std::max<ssize_t>(0, length))) + " on " + host;
}

// " (pid 123)", or nothing: the holder has not written it yet.
std::string holder(const File& file) {
  std::array<char, 512> bytes{};
  const ssize_t count = ::pread(file.descriptor(), bytes.data(), bytes.size(), 0);
  const std::string_view text(bytes.data(), static_cast<size_t>(std::max<ssize_t>(0, count)));
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0) return "";
  const std::string pid = " (pid " + std::string(text.substr(0, digits));
  const std::string_view space = text.substr(std::min(digits + 1, text.size()));
  const size_t host = space.find(" on ");
  if (host == std::string_view::npos || space == pid_space() + "\n") return pid + ")";
  return pid + " of another container or machine:" +
         std::string(space.substr(host + 3, space.find('\n') - host - 3)) + ")";
}

// A holder that removes its folder may have removed the file between our open and our lock.
bool is_still_there(const File& file) {
  struct stat here {};
  struct stat there {};
  if (::fstat(file.descriptor(), &here) != 0) throw_file_error("examine", file.path(), errno);
  return ::lstat(file.path().c_str(), &there) == 0 && here.st_dev == there.st_dev &&
         here.st_ino == there.st_ino;
}

File locked_file(const std::filesystem::path& folder) {
  make_private_folder(folder);
  File file = open_or_create_private_file(folder / "lock");
  int result;
  do {
    result = ::flock(file.descriptor(), LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EWOULDBLOCK) {
    throw Error(ErrorKind::usage, "the folder " + folder.string() + " is in use by another process" +
                                      holder(file) +
                                      ": two runs would overwrite each other's state. Wait for its end, or "
                                      "name another folder.");
  }
  if (result != 0) throw_file_error("lock", file.path(), errno);
  if (!is_still_there(file)) return locked_file(folder);
  if (::ftruncate(file.descriptor(), 0) != 0) throw_file_error("truncate", file.path(), errno);
  const std::string self = std::to_string(::getpid()) + " " + pid_space() + "\n";
  file.write_at(self.data(), self.size(), 0);
  return file;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : folder_(folder), file_(locked_file(folder)) {
  struct stat info {};
  if (::fstat(file_.descriptor(), &info) != 0) throw_file_error("examine", file_.path(), errno);
  identity_ = {info.st_dev, info.st_ino};
}

bool FolderLock::holds(const std::filesystem::path& folder) const {
  struct stat info {};
  return ::lstat((folder / "lock").c_str(), &info) == 0 && identity_ == std::pair(info.st_dev, info.st_ino);
}

void FolderLocks::lock(const std::filesystem::path& folder) {
  const bool held =
      std::any_of(locks_.begin(), locks_.end(), [&](const FolderLock& l) { return l.holds(folder); });
  if (!held) locks_.emplace_back(folder);
}

}  // namespace sluice
