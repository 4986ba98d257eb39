#include "engine/store/private_folder.h"

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "engine/base/error.h"

namespace sluice {
namespace {

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why,
                         const std::string& advice) {
  throw Error(ErrorKind::usage, "refusing to use " + path.string() + ": " + why +
                                    " (others could read or replace the model's state). " + advice);
}

void check_ours(const std::filesystem::path& path, const struct stat& info) {
  if (info.st_uid != ::geteuid()) {
    refuse(path,
           "it belongs to user " + std::to_string(info.st_uid) + ", not to user " +
               std::to_string(::geteuid()) + ", who runs this",
           "Name a folder of your own.");
  }
  if ((info.st_mode & kOthers) != 0) {
    refuse(path, "others have access to it",
           "If nobody else needs it: chmod " + std::string(S_ISDIR(info.st_mode) ? "700 " : "600 ") +
               path.string());
  }
}

struct stat examine(const File& file) {
  struct stat info {};
  if (::fstat(file.descriptor(), &info) != 0) throw_file_error("examine", file.path(), errno);
  return info;
}

File open_ours(const std::filesystem::path& path, int flags) {
  int descriptor;
  do {
    // O_NONBLOCK: a pipe of that name must not hold us up until it is refused.
    descriptor = ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    if (errno == ELOOP) refuse(path, "it is a symbolic link", "Name the place that it points to.");
    if (errno == ENOENT && (flags & O_CREAT) == 0)
      throw Error(ErrorKind::data, "cannot open " + path.string() + ": " + errno_text(ENOENT) + ".");
    throw_file_error((flags & O_CREAT) != 0 ? "create" : "open", path, errno);
  }
  File file = File::adopt(path, descriptor);
  const struct stat info = examine(file);
  check_ours(path, info);
  if (!S_ISREG(info.st_mode)) refuse(path, "it is not a plain file", "Remove it, or name another folder.");
  return file;
}

}  // namespace

void check_private_folder(const std::filesystem::path& folder) {
  // lstat: a link to a folder that is ours today may point elsewhere tomorrow.
  std::filesystem::path itself = folder;
  if (!itself.has_filename()) itself = itself.parent_path();  // "state/" would follow the link
  struct stat info {};
  if (::lstat(itself.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      throw Error(ErrorKind::data, "there is no folder " + folder.string() + ". Is its drive mounted?");
    throw_file_error("examine", folder, errno);
  }
  if (S_ISLNK(info.st_mode)) refuse(folder, "it is a symbolic link", "Name the folder that it points to.");
  if (!S_ISDIR(info.st_mode)) refuse(folder, "it is not a folder", "Name another one.");
  check_ours(folder, info);
}

void make_private_folder(const std::filesystem::path& folder) {
  std::filesystem::path itself = folder;
  if (!itself.has_filename()) itself = itself.parent_path();
  std::error_code error;
  if (itself.has_parent_path()) std::filesystem::create_directories(itself.parent_path(), error);
  if (error) throw_file_error("create the folder", itself.parent_path(), error.value());
  if (::mkdir(itself.c_str(), 0700) != 0 && errno != EEXIST)
    throw_file_error("create the folder", folder, errno);
  check_private_folder(folder);
}

File create_private_file(const std::filesystem::path& path) {
  return open_ours(path, O_RDWR | O_CREAT | O_EXCL);
}

File open_private_file(const std::filesystem::path& path) {
  return open_ours(path, O_RDONLY);
}

File open_or_create_private_file(const std::filesystem::path& path) {
  return open_ours(path, O_RDWR | O_CREAT);
}

}  // namespace sluice
