#pragma once

#include <filesystem>
#include <memory>

#include "engine/schedule/predict.h"
#include "io/aligned_buffer.h"
#include "io/io_queue.h"
#include "io/striped_file.h"

namespace sluice::bench {

// How fast a drive is now, asked again and again: on a file without a name of its own there, in requests of
// 1 MiB with 8 MiB in flight, as the engine's lanes ask (io/make_io_queue.h). Single-threaded.
class DriveProbe {
 public:
  // Makes the file, and writes all of it once. Throws Error.
  explicit DriveProbe(const std::filesystem::path& folder);
  DriveProbe(const DriveProbe&) = delete;
  DriveProbe& operator=(const DriveProbe&) = delete;

  // In two or three seconds: read, written, and both at once.
  void measure(LaneRates& rates);

 private:
  AlignedBuffer memory_;  // outlives the queue, which may have it in flight
  StripedFile file_;
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace sluice::bench
