#include "io/striped_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "io/direct_io.h"

namespace sluice {
namespace {

// 512 KiB to 4 MiB transfer equally fast, but some 8 MiB in flight should be several of them.
constexpr size_t kLargestMerged = size_t{2} << 20;

std::vector<double> weights_of(const std::vector<StripedFile::Part>& parts) {
  std::vector<double> weights;
  for (const StripedFile::Part& part : parts) weights.push_back(part.weight);
  return weights;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// Removes the files that create() made unless all went well.
class Undo {
 public:
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo() {
    for (const std::filesystem::path& path : paths_) ::unlink(path.c_str());
  }
  void add(const std::filesystem::path& path) { paths_.push_back(path); }
  void cancel() { paths_.clear(); }

 private:
  std::vector<std::filesystem::path> paths_;
};

File create_new(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor >= 0) return File::adopt(path, descriptor);
  if (errno == EEXIST)
    throw Error(ErrorKind::usage, path.string() + " is there already. Remove it, or choose another folder.");
  throw_file_error("create", path, errno);
}

File open_own(const std::filesystem::path& path, uint64_t size_bytes) {
  // O_NONBLOCK: a pipe of that name must not keep us waiting for its other end.
  const int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const std::string reason = "cannot open " + path.string() + ": " + errno_text(errno);
    if (errno == ENOENT) throw Error(ErrorKind::data, reason + ". It is needed to go on from this folder.");
    if (errno == ELOOP)
      throw Error(ErrorKind::usage, path.string() + " is a symbolic link; none is followed.");
    if (errno == EISDIR) throw Error(ErrorKind::usage, reason + ".");
    throw_file_error("open", path, errno);
  }
  File file = File::adopt(path, descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) throw_file_error("examine", path, errno);
  if (!S_ISREG(info.st_mode)) throw Error(ErrorKind::usage, path.string() + " is not a file.");
  if (info.st_uid != ::geteuid()) {
    throw Error(ErrorKind::usage, path.string() + " belongs to user " + std::to_string(info.st_uid) +
                                      ", not to user " + std::to_string(::geteuid()) + " who runs this.");
  }
  if (static_cast<uint64_t>(info.st_size) != size_bytes) {
    throw Error(ErrorKind::data, path.string() + " has " + std::to_string(info.st_size) +
                                     " bytes instead of " + std::to_string(size_bytes) +
                                     ". Was it cut, or made by another run?");
  }
  return file;
}

}  // namespace

StripedFile::StripedFile(std::vector<Part> parts, uint64_t size_bytes)
    : parts_(std::move(parts)), size_bytes_(size_bytes), map_(weights_of(parts_)) {
  SLUICE_CHECK(size_bytes > 0 && size_bytes % kIoAlignment == 0);
}

StripedFile StripedFile::create(std::vector<Part> parts, uint64_t size_bytes) {
  StripedFile file(std::move(parts), size_bytes);
  Undo undo;
  for (const Part& part : file.parts_) {
    file.files_.push_back(create_new(part.path));
    undo.add(part.path);
  }
  file.preallocate();
  file.choose_mode();
  for (File& part : file.files_) {
    part.sync();
    sync_folder(folder_of(part.path()));
  }
  undo.cancel();
  return file;
}

StripedFile StripedFile::open(std::vector<Part> parts, uint64_t size_bytes) {
  StripedFile file(std::move(parts), size_bytes);
  for (size_t i = 0; i < file.parts_.size(); ++i)
    file.files_.push_back(open_own(file.parts_[i].path, file.part_bytes(i)));
  file.choose_mode();
  return file;
}

// Only the last stripe may be shorter, and it is the last of its file.
uint64_t StripedFile::part_bytes(size_t part) const {
  const uint64_t stripe_count = (size_bytes_ + kStripeBytes - 1) / kStripeBytes;
  const uint64_t missing = stripe_count * kStripeBytes - size_bytes_;
  const uint64_t whole = map_.count(part, stripe_count) * kStripeBytes;
  return map_.place(stripe_count - 1).file == part ? whole - missing : whole;
}

void StripedFile::preallocate() {
  // Two parts may share a drive: each must have room for its own and what was asked for before.
  std::map<dev_t, uint64_t> needed_bytes;
  for (size_t i = 0; i < files_.size(); ++i) {
    struct stat info {};
    if (::fstat(files_[i].descriptor(), &info) != 0) throw_file_error("examine", parts_[i].path, errno);
    needed_bytes[info.st_dev] += part_bytes(i);
    check_free_space(folder_of(parts_[i].path), needed_bytes[info.st_dev]);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto size = static_cast<off_t>(part_bytes(i));
    if (size == 0) continue;  // a weight too small for this size
    int result;
    do {
      result = ::fallocate(files_[i].descriptor(), 0, 0, size);
    } while (result != 0 && errno == EINTR);
    // Some file systems cannot: then a full disk shows only when it is written to.
    if (result != 0 && errno == EOPNOTSUPP) result = ::ftruncate(files_[i].descriptor(), size);
    if (result == 0) continue;
    const int error_number = errno;
    // A fallocate that fails leaves blocks allocated for as long as somebody holds the file open.
    if (::ftruncate(files_[i].descriptor(), 0) != 0) throw_file_error("cut", parts_[i].path, errno);
    throw_file_error("reserve " + std::to_string(size) + " bytes for", parts_[i].path, error_number);
  }
}

// One buffered file makes all of them count as buffered, but each that can goes direct.
void StripedFile::choose_mode() {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (part_bytes(i) < kIoAlignment) continue;
    const std::string reason = turn_on_direct_io(files_[i]);
    if (reason.empty() || buffered()) continue;
    buffered_reason_ = parts_[i].path.string() + " is not read and written directly: " + reason;
  }
}

std::vector<int> StripedFile::descriptors() const {
  std::vector<int> all;
  for (const File& file : files_) all.push_back(file.descriptor());
  return all;
}

void StripedFile::add_requests(IoRequest::Kind kind, uint64_t offset, size_t size_bytes, std::byte* data,
                               uint64_t tag, std::vector<IoRequest>& requests) const {
  SLUICE_CHECK((offset | size_bytes | reinterpret_cast<uintptr_t>(data)) % kIoAlignment == 0);
  SLUICE_CHECK(offset <= size_bytes_ && size_bytes <= size_bytes_ - offset);
  const size_t first = requests.size();
  while (size_bytes > 0) {
    const uint64_t within = offset % kStripeBytes;
    const auto piece = static_cast<size_t>(std::min<uint64_t>(size_bytes, kStripeBytes - within));
    const auto [file, slot] = map_.place(offset / kStripeBytes);
    const IoRequest request{.kind = kind,
                            .descriptor = files_[file].descriptor(),
                            .data = data,
                            .size_bytes = piece,
                            .offset = slot * kStripeBytes + within,
                            .tag = tag};
    IoRequest* last = requests.size() > first ? &requests.back() : nullptr;
    if (last != nullptr && last->descriptor == request.descriptor &&
        last->offset + last->size_bytes == request.offset && last->size_bytes + piece <= kLargestMerged) {
      last->size_bytes += piece;
    } else {
      requests.push_back(request);
    }
    offset += piece;
    data += piece;
    size_bytes -= piece;
  }
}

std::string StripedFile::place(const IoRequest& request) const {
  const auto file = std::find_if(files_.begin(), files_.end(),
                                 [&](const File& each) { return each.descriptor() == request.descriptor; });
  SLUICE_CHECK(file != files_.end());
  return file->path().string() + " at offset " + std::to_string(request.offset);
}

void StripedFile::sync() {
  for (const File& file : files_) {
    if (::fdatasync(file.descriptor()) != 0) throw_file_error("sync", file.path(), errno);
    // Pages in the cache are clean now, so they go. A direct file has some where somebody else read it.
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

void StripedFile::unlink() {
  for (const File& file : files_)
    if (::unlink(file.path().c_str()) != 0 && errno != ENOENT) throw_file_error("remove", file.path(), errno);
}

}  // namespace sluice
