#include "io/file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "engine/base/error.h"

namespace sluice {
namespace {

// Linux transfers at most 2^31 - 4096 bytes a call; below that a call can also be interrupted in reasonable
// time.
constexpr size_t kLargestTransfer = size_t{1} << 30;
constexpr size_t kCopyPiece = size_t{1} << 20;

ErrorKind kind_of(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:  // ulimit -f, or a file system that cannot hold files of this size
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return ErrorKind::resource;
    default:
      return ErrorKind::runtime;
  }
}

std::string_view advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return ". Free some space or choose another output folder.";
    case EMFILE:
    case ENFILE:
      return ". Raise the limit of open files (ulimit -n).";
    case EACCES:
    case EPERM:
    case EROFS:
      return ". Check the permissions, or choose another folder.";
    default:
      return ".";
  }
}

std::string failure(std::string_view action, const std::filesystem::path& path, int error_number,
                    int64_t offset) {
  std::string text = "cannot " + std::string(action) + " " + path.string();
  if (offset >= 0) text += " at offset " + std::to_string(offset);
  text += ": " + errno_text(error_number);
  return text + std::string(advice(error_number));
}

int open_or_throw(std::string_view action, const std::filesystem::path& path, int flags) {
  int descriptor;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) {
    const int error_number = errno;
    const bool bad_input = (flags & O_ACCMODE) == O_RDONLY && kind_of(error_number) == ErrorKind::runtime;
    if (bad_input) throw Error(ErrorKind::data, failure(action, path, error_number, -1));
    throw_file_error(action, path, error_number);
  }
  return descriptor;
}

std::filesystem::path partial_name(const std::filesystem::path& path) {
  return path.string() + ".partial-" + std::to_string(::getpid());
}

}  // namespace

void throw_file_error(std::string_view action, const std::filesystem::path& path, int error_number,
                      int64_t offset) {
  throw Error(kind_of(error_number), failure(action, path, error_number, offset));
}

File File::open(const std::filesystem::path& path) {
  File file(path, open_or_throw("open", path, O_RDONLY));
  struct stat info {};
  if (::fstat(file.descriptor_, &info) != 0) throw_file_error("examine", path, errno);
  if (S_ISDIR(info.st_mode))
    throw Error(ErrorKind::data, "cannot read " + path.string() + ": it is a folder.");
  return file;
}

File File::create(const std::filesystem::path& path) {
  return File(path, open_or_throw("create", path, O_RDWR | O_CREAT | O_TRUNC));
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

uint64_t File::size_bytes() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) throw_file_error("examine", path_, errno);
  return static_cast<uint64_t>(info.st_size);
}

void File::read_at(void* out, size_t size_bytes, uint64_t offset) const {
  auto* to = static_cast<std::byte*>(out);
  while (size_bytes > 0) {
    const ssize_t count =
        ::pread(descriptor_, to, std::min(size_bytes, kLargestTransfer), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error("read", path_, errno, static_cast<int64_t>(offset));
    if (count == 0) {
      throw Error(ErrorKind::data, "cannot read " + path_.string() + " at offset " + std::to_string(offset) +
                                       ": the file ends there, " + std::to_string(size_bytes) +
                                       " bytes short. Was it downloaded completely?");
    }
    to += count;
    offset += static_cast<uint64_t>(count);
    size_bytes -= static_cast<size_t>(count);
  }
}

void File::write_at(const void* data, size_t size_bytes, uint64_t offset) {
  const auto* from = static_cast<const std::byte*>(data);
  while (size_bytes > 0) {
    const ssize_t count =
        ::pwrite(descriptor_, from, std::min(size_bytes, kLargestTransfer), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error("write", path_, errno, static_cast<int64_t>(offset));
    if (count == 0) throw_file_error("write", path_, EIO, static_cast<int64_t>(offset));
    from += count;
    offset += static_cast<uint64_t>(count);
    size_bytes -= static_cast<size_t>(count);
  }
}

void File::sync() {
  // EINVAL: something that cannot be synced, such as a pipe or /dev/full; there is nothing to wait for then.
  if (::fsync(descriptor_) != 0 && errno != EINVAL) throw_file_error("sync", path_, errno);
}

PendingFile::PendingFile(std::filesystem::path path)
    : path_(std::move(path)), file_(File::create(partial_name(path_))) {}

PendingFile::~PendingFile() {
  if (!committed_) ::unlink(file_.path().c_str());
}

void PendingFile::commit() {
  file_.sync();
  if (::rename(file_.path().c_str(), path_.c_str()) != 0) throw_file_error("rename to", path_, errno);
  committed_ = true;
  sync_folder(path_.parent_path());
}

std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes) {
  const File file = File::open(path);
  const uint64_t size = file.size_bytes();
  if (size > limit_bytes) {
    throw Error(ErrorKind::data, path.string() + " has " + std::to_string(size) + " bytes, more than the " +
                                     std::to_string(limit_bytes) + " that such a file can sensibly have.");
  }
  std::string text(size, '\0');
  file.read_at(text.data(), text.size(), 0);
  return text;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view contents) {
  PendingFile pending(path);
  pending.file().write_at(contents.data(), contents.size(), 0);
  pending.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? std::filesystem::path(".") : folder;
  const int descriptor = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error("open", name, errno);
  const int error_number = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some network file systems cannot sync a folder and say EINVAL; the rename itself was accepted.
  if (error_number != 0 && error_number != EINVAL) throw_file_error("sync", name, error_number);
}

void copy_file_contents(const std::filesystem::path& from, const std::filesystem::path& to) {
  const File source = File::open(from);
  PendingFile target(to);
  const uint64_t size = source.size_bytes();
  const auto piece = std::make_unique<std::byte[]>(std::min<uint64_t>(size, kCopyPiece));
  for (uint64_t offset = 0; offset < size; offset += kCopyPiece) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(size - offset, kCopyPiece));
    source.read_at(piece.get(), count, offset);
    target.file().write_at(piece.get(), count, offset);
  }
  target.commit();
}

std::filesystem::path nearest_existing(const std::filesystem::path& folder) {
  std::filesystem::path existing = std::filesystem::absolute(folder);
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  return existing;
}

void check_free_space(const std::filesystem::path& folder, uint64_t needed_bytes) {
  const std::filesystem::path existing = nearest_existing(folder);
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0) throw_file_error("examine", existing, errno);
  const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize;
  if (free_bytes >= needed_bytes) return;
  throw Error(ErrorKind::resource, "not enough disk space at " + existing.string() + ": " +
                                       std::to_string(needed_bytes) + " bytes are needed for " +
                                       folder.string() + ", " + std::to_string(free_bytes) +
                                       " are free. Free some space or choose another output folder.");
}

}  // namespace sluice
