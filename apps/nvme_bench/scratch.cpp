#include "apps/nvme_bench/scratch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/file.h"

namespace sluice::nvme_bench {

std::filesystem::path scratch_path(const std::filesystem::path& folder) {
  return folder / ("sluice-nvme-bench-" + std::to_string(::getpid()));
}

StripedFile create_scratch(std::vector<StripedFile::Part> parts, uint64_t size_bytes) {
  for (StripedFile::Part& part : parts) part.path = scratch_path(part.path);
  StripedFile file = StripedFile::create(std::move(parts), size_bytes);
  file.unlink();
  return file;
}

double timed_sync(StripedFile& file) {
  const auto start = std::chrono::steady_clock::now();
  file.sync();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

uint64_t Room::reserve_bytes() const {
  constexpr uint64_t kMost = 100'000'000'000;
  return std::min(size_bytes / 10, kMost);
}

uint64_t Room::usable_bytes() const {
  return free_bytes - std::min(free_bytes, reserve_bytes());
}

Room room_at(const std::filesystem::path& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) throw_file_error("examine", folder, errno);
  return {.size_bytes = uint64_t{info.f_blocks} * info.f_frsize,
          .free_bytes = uint64_t{info.f_bavail} * info.f_frsize};
}

}  // namespace sluice::nvme_bench
