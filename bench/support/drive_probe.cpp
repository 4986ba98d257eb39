#include "bench/support/drive_probe.h"

#include <unistd.h>

#include "apps/nvme_bench/drive_bench.h"
#include "apps/nvme_bench/measure.h"
#include "io/make_io_queue.h"

namespace sluice::bench {
namespace {

using nvme_bench::Load;
using nvme_bench::Measurement;

constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kInFlight = 8 * kBlock;
constexpr uint64_t kFile = uint64_t{1} << 30;
constexpr double kSeconds = 0.6;  // of each kind of traffic; twice that of both at once

StripedFile make_file(const std::filesystem::path& folder) {
  StripedFile file = StripedFile::create({{.path = nvme_bench::scratch_path(folder)}}, kFile);
  file.unlink();
  return file;
}

Load load(const StripedFile& file, double read_share) {
  const auto read_bytes = static_cast<uint64_t>(read_share * static_cast<double>(kFile));
  const auto walk = [&](IoRequest::Kind kind, uint64_t begin, uint64_t size) {
    return size == 0 ? nvme_bench::Walk{}
                     : nvme_bench::walk_blocks(kind, file.descriptors()[0], begin, size, kBlock);
  };
  return {.reads = walk(IoRequest::Kind::read, 0, read_bytes),
          .writes = walk(IoRequest::Kind::write, read_bytes, kFile - read_bytes),
          .block_bytes = kBlock,
          .bytes_in_flight = kInFlight};
}

}  // namespace

DriveProbe::DriveProbe(const std::filesystem::path& folder)
    : memory_(kInFlight, "probing the drive", AlignedBuffer::Fill::now),
      file_(make_file(folder)),
      queue_(make_io_queue({.queue = {.buffers = {memory_.bytes()}, .descriptors = file_.descriptors()}},
                           nullptr)) {
  nvme_bench::fill_random(memory_.bytes(), static_cast<uint64_t>(::getpid()));
  const Load once = load(file_, 0);
  nvme_bench::measure(*queue_, once, memory_.bytes(), {.transfers = once.writes.count});
  file_.sync();
}

void DriveProbe::measure(LaneRates& rates) {
  const auto run = [&](double read_share, double seconds) {
    return nvme_bench::measure(*queue_, load(file_, read_share), memory_.bytes(), {.seconds = seconds});
  };
  rates.disk_read_bytes_per_second = run(1, kSeconds).bytes_per_second();
  rates.disk_write_bytes_per_second = run(0, kSeconds).bytes_per_second();
  const Measurement mixed = run(0.5, 2 * kSeconds);
  rates.disk_mixed_bytes_per_second = mixed.bytes_per_second();
  rates.disk_cpu_seconds_per_byte = mixed.cpu_seconds_per_gb() * 1e-9;
}

}  // namespace sluice::bench
