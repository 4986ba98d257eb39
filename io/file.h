#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {

// An open file. Move-only; the destructor closes it. Reads and writes are positional, so one File may be used
// by several threads at once. Every call either transfers all that was asked for (EINTR and short transfers
// are continued) or throws an Error with path, offset and errno: kind `resource` for a full disk, a quota or
// a lack of descriptors, `data` for a file that is missing, not readable or shorter than asked for, else
// `runtime`.
//
// Model files are read with pread and not mapped: a file that is truncated meanwhile, or a disk that fails,
// is then an Error with an offset and not a SIGBUS, and what was read never counts as memory of the process.
class File {
 public:
  static File open(const std::filesystem::path& path);    // for reading; a folder is refused
  static File create(const std::filesystem::path& path);  // for writing; truncates what is there
  // Takes over a descriptor that the caller opened, with flags of its own.
  static File adopt(std::filesystem::path path, int descriptor) { return {std::move(path), descriptor}; }
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  uint64_t size_bytes() const;
  void read_at(void* out, size_t size_bytes, uint64_t offset) const;
  void write_at(const void* data, size_t size_bytes, uint64_t offset);
  void sync();  // fsync

 private:
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A file that appears under its name only when it is whole: written to `NAME.partial-PID` in the same folder,
// which the destructor removes unless commit() was called. commit() syncs the file, renames it and syncs the
// folder.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path path);
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile();

  File& file() { return file_; }
  void commit();

 private:
  std::filesystem::path path_;
  File file_;
  bool committed_ = false;
};

// The whole file as text. Refuses more than `limit_bytes` (kind data): for small files, such as config.json.
std::string read_text_file(const std::filesystem::path& path, uint64_t limit_bytes = uint64_t{256} << 20);
void write_file_atomically(const std::filesystem::path& path, std::string_view contents);
void sync_folder(const std::filesystem::path& folder);
// Copies the contents (a symbolic link is followed) in pieces; the target must not be half-read by others
// meanwhile.
void copy_file_contents(const std::filesystem::path& from, const std::filesystem::path& to);
// The folder, made absolute, or the nearest of those that it is to lie in that exists.
std::filesystem::path nearest_existing(const std::filesystem::path& folder);
// Throws (kind resource) unless the file system that holds `folder`, or its nearest existing parent, has
// room.
void check_free_space(const std::filesystem::path& folder, uint64_t needed_bytes);

// "cannot ACTION PATH at offset N: No space left on device (28). ..." with the kind that the errno implies;
// without an offset when it is negative.
[[noreturn]] void throw_file_error(std::string_view action, const std::filesystem::path& path,
                                   int error_number, int64_t offset = -1);

}  // namespace sluice
