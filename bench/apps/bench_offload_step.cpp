// How much of the disk's time hides under compute: a training step with everything on disk against the longer
// of the same step with everything in RAM and the same bytes moved by the drives alone. SmolLM2-135M's shape,
// random weights; the number of tokens is chosen so that both take about as long, which is when hiding is
// hardest.
//
//   bench_offload_step [--dtype fp32|bf16] [--folder DIR] [--tokens N] [--as GPU]
//
// With --as, compute and copies take the time that a modelled GPU ("RTX 4090", or numbers:
// gpu/timed/gpu_models.h) would need, and nothing is computed.
//
// The limit is the longest of compute alone, disk alone, and backward + max(forward, the update's share of
// the disk): updates run under the next forward pass, so that they can be clipped exactly.
//
// Prints `ratio offload_efficiency R`; fails where compute over disk is not in [0.8, 1.25] (unless the tokens
// of a step were given).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include "apps/finetune/runtime.h"
#include "apps/finetune/trainer.h"
#include "bench/support/train_workload.h"
#include "engine/base/math.h"
#include "gpu/timed/timed_device.h"
#include "io/aligned_buffer.h"
#include "io/make_io_queue.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using finetune::Trainer;
using finetune::TrainerOptions;

constexpr int kTimedSteps = 3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// A folder of our own beside the others on the drive, gone at the end.
class Folder {
 public:
  explicit Folder(const fs::path& parent)
      : path_(parent / ("bench_offload_step." + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

struct Arguments {
  DType dtype = DType::bf16;
  fs::path folder = fs::current_path();
  int64_t tokens = 0;  // of a step; 0: to be chosen
  std::optional<gpu::GpuModel> gpu;
};

IoQueueFactory queues() {
  return [] { return make_io_queue({}, nullptr); };
}

struct Measured {
  std::vector<double> losses;
  uint64_t state_hash = 0;
  double step_seconds = 0;  // median, the update of the step before included
  double least_seconds = 0;
  double forward_seconds = 0;  // median, until the layers' forward pass has ended
  size_t read_bytes = 0;       // a step, from disk
  size_t written_bytes = 0;
  size_t update_bytes = 0;  // of both, by the update
};

// When an event was reached, as seen by a thread of its own.
std::future<Clock::time_point> time_of(const gpu::Event& event) {
  return std::async(std::launch::async, [event] {
    event.wait();
    return Clock::now();
  });
}

size_t update_bytes(const Plan& plan, const TensorStore& store, DType dtype) {
  size_t bytes = 0;
  for (BlockId block{0}; block.value < store.block_count(); ++block.value) {
    const BlockLayout& layout = store.layout(block);
    const BlockHome& home = plan.home(block);
    if (home.moments == Tier::disk) bytes += 2 * layout.moment_bytes();
    if (home.weights == Tier::disk) bytes += 4 * layout.half_bytes();
    if (home.gradient == Tier::disk)
      bytes += static_cast<size_t>(layout.logical_elements()) * size_bytes(dtype);
  }
  return bytes;
}

// One untimed step and so many timed ones, each with the update of the step before.
Measured train(const Arguments& arguments, const Workload& workload, bool on_disk, int timed_steps) {
  finetune::Runtime runtime = finetune::make_runtime({});
  const ModelConfig config = smollm2(30);
  TrainerOptions options = trainer_options(arguments.dtype, workload);
  if (arguments.gpu && arguments.gpu->memory_bytes > 0)
    options.device_limit_bytes = arguments.gpu->memory_bytes;
  std::optional<Folder> folder;
  FolderLocks locks;
  std::unique_ptr<StateFile> file;
  if (on_disk) {
    folder.emplace(arguments.folder);
    options.disk = true;
    options.spill = Spill::everything;
    options.make_queue = queues();
    const std::unique_ptr<IoQueue> queue = options.make_queue();
    file = StateFile::create({.drives = {{folder->path() / "drive", 1}},
                              .manifest_folder = folder->path() / "state",
                              .identity = {}},
                             Trainer::state_layout(config, options), locks, {.queue = *queue});
    options.state_file = file.get();
  }
  Measured measured;
  finetune::PeakMemory peak;
  std::unique_ptr<gpu::TimedDevice> timed;
  if (arguments.gpu) timed = gpu::make_timed_device(*runtime.device, {.model = *arguments.gpu});
  gpu::Device& device = timed ? static_cast<gpu::Device&>(*timed) : *runtime.device;
  Trainer trainer(device, *runtime.pool, config, options);
  fill_weights(trainer.engine().store());
  const std::vector<finetune::MicroBatch> batches = random_batches(workload, config.vocab_size);
  std::vector<double> seconds, forward_seconds;
  std::future<Clock::time_point> forward_end;
  trainer.observe_phases([&](Phase ended, const gpu::Event& end) {
    if (ended == Phase::forward) forward_end = time_of(end);
  });
  for (int step = 0; step < 1 + timed_steps; ++step) {
    const Clock::time_point begin = Clock::now();
    measured.losses.push_back(trainer.step(batches, 1e-4).loss);
    const double all = seconds_since(begin);
    const double forward = std::chrono::duration<double>(forward_end.get() - begin).count();
    std::printf("    step %d: loss %.5f, forward %.3f s, all %.3f s\n", step, measured.losses.back(), forward,
                all);
    if (step == 0) continue;
    seconds.push_back(all);
    forward_seconds.push_back(forward);
  }
  measured.step_seconds = median(seconds);
  measured.least_seconds = std::ranges::min(seconds);
  measured.forward_seconds = median(forward_seconds);
  const Plan& plan = trainer.engine().plan();
  measured.update_bytes = update_bytes(plan, trainer.engine().store(), arguments.dtype);
  measured.read_bytes = plan.disk_read_bytes_per_walk;
  measured.written_bytes = plan.disk_write_bytes_per_walk;
  std::printf(
      "    peak %.2f GB, planned device %.2f, host %.2f; a step reads %.2f GB and writes %.2f\n",
      static_cast<double>(peak.bytes()) * 1e-9, static_cast<double>(plan.peak_bytes(Tier::device)) * 1e-9,
      static_cast<double>(plan.peak_bytes(Tier::host)) * 1e-9,
      static_cast<double>(measured.read_bytes) * 1e-9, static_cast<double>(measured.written_bytes) * 1e-9);
  measured.state_hash = trainer.engine().state_hash();
  return measured;
}

// Seconds for so many bytes of each, by the drives alone: mixed, 2 MiB a request, as the engine's lanes ask.
double disk_seconds(const Arguments& arguments, size_t read_bytes, size_t written_bytes) {
  constexpr size_t kRequest = size_t{2} << 20;
  constexpr size_t kFile = size_t{2} << 30;
  const Folder folder(arguments.folder);
  StripedFile file = StripedFile::create({{folder.path() / "slab", 1}}, kFile);
  const AlignedBuffer buffer(16 * kRequest, "the bench", AlignedBuffer::Fill::now);
  const std::unique_ptr<IoQueue> queue = queues()();
  const auto requests = [&](IoRequest::Kind kind, size_t bytes, uint64_t first) {
    std::vector<IoRequest> list;
    for (uint64_t i = 0; i * kRequest < bytes; ++i) {
      file.add_requests(kind, (first + i) * kRequest % kFile, kRequest, buffer.data() + i % 16 * kRequest, 0,
                        list);
    }
    return list;
  };
  run_all(*queue, requests(IoRequest::Kind::write, kFile, 0));
  // Reads and writes in turns, in proportion.
  const std::vector<IoRequest> reads = requests(IoRequest::Kind::read, read_bytes, 0);
  const std::vector<IoRequest> writes = requests(IoRequest::Kind::write, written_bytes, kFile / kRequest / 2);
  std::vector<IoRequest> mixed;
  for (size_t r = 0, w = 0; r < reads.size() || w < writes.size();) {
    const bool read = w == writes.size() || (r < reads.size() && r * writes.size() <= w * reads.size());
    mixed.push_back(read ? reads[r++] : writes[w++]);
  }
  std::vector<double> seconds;
  for (int round = 0; round < 3; ++round) {
    const Clock::time_point begin = Clock::now();
    run_all(*queue, mixed);
    seconds.push_back(seconds_since(begin));
  }
  std::printf("  disk alone: %.3f s (%.2f GB/s)\n", median(seconds),
              static_cast<double>(read_bytes + written_bytes) * 1e-9 / median(seconds));
  return median(seconds);
}

// Rows of at most 512 tokens, one a micro-batch; many a micro-batch where there are many.
Workload workload_of(int64_t tokens) {
  constexpr int64_t kRow = 512, kManyRows = 16;
  if (tokens >= kRow * kManyRows) {
    return {.micro_batch_count = static_cast<int>(std::max<int64_t>(1, tokens / (kRow * kManyRows))),
            .rows = kManyRows,
            .row_tokens = kRow};
  }
  const int64_t rows = divide_up(tokens, kRow);
  return {.micro_batch_count = static_cast<int>(rows),
          .rows = 1,
          .row_tokens = std::max<int64_t>(64, round_up(tokens / rows, int64_t{64}))};
}

// So many that compute takes as long as the disk: the step's time in RAM is close to a line.
int64_t choose_tokens(const Arguments& arguments, double disk_alone) {
  std::printf("choosing the tokens, everything in RAM:\n");
  const int64_t few = arguments.gpu ? 16384 : 128, many = 4 * few;
  const double of_few = train(arguments, workload_of(few), false, 2).least_seconds;
  const double of_many = train(arguments, workload_of(many), false, 2).least_seconds;
  const double each = (of_many - of_few) / static_cast<double>(many - few);
  return few + static_cast<int64_t>((disk_alone - of_few) / each);
}

int run(const Arguments& arguments) {
  int64_t tokens = arguments.tokens;
  if (tokens == 0) {
    std::printf("the disk's bytes:\n");
    const Measured disk = train(arguments, workload_of(128), true, 1);
    tokens = choose_tokens(arguments, disk_seconds(arguments, disk.read_bytes, disk.written_bytes));
  }
  const Workload workload = workload_of(std::max<int64_t>(64, tokens));
  std::printf("%lld tokens, everything in RAM:\n", static_cast<long long>(workload.tokens()));
  const Measured ram = train(arguments, workload, false, kTimedSteps);
  std::printf("%lld tokens, everything on disk:\n", static_cast<long long>(workload.tokens()));
  const Measured disk = train(arguments, workload, true, kTimedSteps);
  if (!arguments.gpu && (disk.losses != ram.losses || disk.state_hash != ram.state_hash)) {
    std::printf("WRONG: the bits differ from those in RAM\n");
    return 1;
  }
  const double alone = disk_seconds(arguments, disk.read_bytes, disk.written_bytes);
  const double compute = ram.step_seconds;
  const double update = alone * static_cast<double>(disk.update_bytes) /
                        static_cast<double>(disk.read_bytes + disk.written_bytes);
  const double forward = ram.forward_seconds;
  const double chained = compute - forward + std::max(forward, update);
  std::printf(
      "  compute alone %.3f s (forward %.3f), disk alone %.3f s (updates %.3f), compute / disk %.2f\n",
      compute, forward, alone, update, compute / alone);
  std::printf("  backward + max(forward, update) %.3f s; step %.3f s (forward %.3f)\n", chained,
              disk.step_seconds, disk.forward_seconds);
  std::printf("ratio offload_efficiency %.3f\n", std::max({compute, alone, chained}) / disk.step_seconds);
  if (arguments.tokens == 0 && (compute / alone < 0.8 || compute / alone > 1.25)) {
    std::printf("FAILED: compute and disk are too far apart to say something about hiding\n");
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  try {
    sluice::bench::Arguments arguments;
    for (int i = 1; i + 1 < count; i += 2) {
      const std::string name = values[i], value = values[i + 1];
      if (name == "--dtype") arguments.dtype = value == "fp32" ? sluice::DType::f32 : sluice::DType::bf16;
      if (name == "--as") arguments.gpu = sluice::gpu::gpu_model(value);
      if (name == "--folder") arguments.folder = value;
      if (name == "--tokens") arguments.tokens = std::stoll(value);
    }
    return sluice::bench::run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_offload_step: %s\n", error.what());
    return 1;
  }
}
