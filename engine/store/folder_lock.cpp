#include "engine/store/folder_lock.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <string>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/store/private_folder.h"

namespace sluice {
namespace {

// " (pid 123)", or nothing: the holder has not written it yet.
std::string holder(const File& file) {
  std::array<char, 16> text{};
  const ssize_t count = ::pread(file.descriptor(), text.data(), text.size(), 0);
  std::string digits;
  for (ssize_t i = 0; i < count && std::isdigit(static_cast<unsigned char>(text[static_cast<size_t>(i)]));
       ++i)
    digits += text[static_cast<size_t>(i)];
  return digits.empty() ? "" : " (pid " + digits + ")";
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
  const std::string pid = std::to_string(::getpid()) + "\n";
  file.write_at(pid.data(), pid.size(), 0);
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
