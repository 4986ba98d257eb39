#include "io/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/base/error.h"
#include "io/file.h"

namespace sluice {

void run_all(IoQueue& queue, std::span<const IoRequest> requests, size_t bytes_in_flight) {
  SLUICE_CHECK(queue.in_flight() == 0);
  size_t next = 0, flying_bytes = 0;
  size_t failed = requests.size();  // the first that failed
  int error_number = 0;
  while (queue.in_flight() > 0 || (next < requests.size() && error_number == 0)) {
    while (next < requests.size() && error_number == 0 && queue.in_flight() < queue.capacity() &&
           (flying_bytes == 0 || flying_bytes + requests[next].size_bytes <= bytes_in_flight)) {
      IoRequest request = requests[next];
      request.tag = next++;
      flying_bytes += request.size_bytes;
      queue.start({&request, 1});
    }
    for (const IoCompletion& completion : queue.wait(1)) {
      flying_bytes -= requests[completion.tag].size_bytes;
      if (completion.error_number == 0 || completion.tag > failed) continue;
      failed = completion.tag;
      error_number = completion.error_number;
    }
  }
  if (error_number != 0) throw_io_error(requests[failed], error_number);
}

void throw_io_error(const IoRequest& request, int error_number) {
  const std::string link = "/proc/self/fd/" + std::to_string(request.descriptor);
  std::error_code failure;
  std::filesystem::path path = std::filesystem::read_symlink(link, failure);
  if (failure) path = "descriptor " + std::to_string(request.descriptor);
  if (error_number == ENODATA) {
    throw Error(ErrorKind::data, "cannot read " + std::to_string(request.size_bytes) + " bytes of " +
                                     path.string() + " at offset " + std::to_string(request.offset) +
                                     ": the file ends before that. Did something else cut it?");
  }
  throw_file_error(request.kind == IoRequest::Kind::read ? "read" : "write", path, error_number,
                   static_cast<int64_t>(request.offset));
}

}  // namespace sluice
