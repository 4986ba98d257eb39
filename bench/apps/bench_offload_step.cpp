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
// Prints `ratio offload_efficiency R`. Where compute over disk is not in [0.8, 1.25], other tokens are tried,
// three in all, before it fails (unless the tokens of a step were given).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/median.h"
#include "bench/support/program.h"
#include "bench/support/trial_run.h"
#include "engine/base/math.h"
#include "io/aligned_buffer.h"
#include "io/make_io_queue.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr int kTimedSteps = 3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Arguments {
  DType dtype = DType::bf16;
  std::string folder = ".";
  int64_t tokens = 0;  // of a step; 0: to be chosen
  std::optional<gpu::GpuModel> gpu;
};

// What a step moves from and to the drives.
struct Traffic {
  size_t read_bytes = 0;
  size_t written_bytes = 0;
  size_t update_bytes = 0;  // of both, by the update
};

TrialOptions trial(const Arguments& arguments, const Workload& workload, bool on_disk) {
  TrialOptions options{.dtype = arguments.dtype, .workload = workload, .gpu = arguments.gpu};
  if (on_disk) options.folder = arguments.folder;
  return options;
}

Traffic everything_on_disk(const Arguments& arguments, const Workload& workload) {
  const finetune::Runtime runtime = finetune::make_runtime({});
  const TrialOptions everything = trial(arguments, workload, true);
  const ModelConfig config = model_config(everything);
  const finetune::TrainerOptions options = trainer_options(everything);
  const Plan plan = finetune::Trainer::plan(*runtime.device, config, options);
  Traffic traffic{.read_bytes = plan.disk_read_bytes_per_walk,
                  .written_bytes = plan.disk_write_bytes_per_walk};
  const StateLayout states = finetune::Trainer::state_layout(config, options);
  for (BlockId block{0}; block.value < states.block_count(); ++block.value) {
    const BlockHome& home = plan.home(block);
    const auto add = [&](Section section, Tier tier, size_t times) {
      if (tier == Tier::disk) traffic.update_bytes += times * states.section_bytes(block, section);
    };
    add(Section::first_moment, home.moments, 2);
    add(Section::second_moment, home.moments, 2);
    add(Section::low, home.weights, 2);
    add(Section::high, home.weights, 2);
    add(Section::gradient, home.gradient, 1);
  }
  return traffic;
}

struct Measured : TrialRun::Medians {
  uint64_t state_hash = 0;
};

Measured train(const Arguments& arguments, const Workload& workload, bool on_disk, int timed_steps) {
  finetune::PeakMemory peak;
  TrialRun run(trial(arguments, workload, on_disk));
  Measured measured{run.steps(timed_steps), 0};
  const Plan& plan = run.trainer().engine().plan();
  const auto gigabytes = [](size_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  std::printf(
      "    step %.3f s, forward %.3f; peak %.2f GB, planned device %.2f, host %.2f; reads %.2f GB, writes "
      "%.2f\n",
      measured.seconds, measured.forward_seconds, gigabytes(peak.bytes()),
      gigabytes(plan.peak_bytes(Tier::device)), gigabytes(plan.peak_bytes(Tier::host)),
      gigabytes(plan.disk_read_bytes_per_walk), gigabytes(plan.disk_write_bytes_per_walk));
  measured.state_hash = run.trainer().engine().state_hash();
  return measured;
}

// Seconds of three rounds of so many bytes, by the drives alone: mixed, 2 MiB a request, as the engine's
// lanes ask.
std::vector<double> disk_seconds(const Arguments& arguments, const Traffic& traffic) {
  constexpr size_t kRequest = size_t{2} << 20;
  constexpr size_t kFile = size_t{2} << 30;
  const BenchFolder folder(arguments.folder);
  StripedFile file = StripedFile::create({{folder.path() / "slab", 1}}, kFile);
  const AlignedBuffer buffer(16 * kRequest, "the bench", AlignedBuffer::Fill::now);
  const std::unique_ptr<IoQueue> queue = make_io_queue({}, nullptr);
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
  const std::vector<IoRequest> reads = requests(IoRequest::Kind::read, traffic.read_bytes, 0);
  const std::vector<IoRequest> writes =
      requests(IoRequest::Kind::write, traffic.written_bytes, kFile / kRequest / 2);
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
              static_cast<double>(traffic.read_bytes + traffic.written_bytes) * 1e-9 / median(seconds));
  return seconds;
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

// Seconds of a step in RAM by its tokens: close to a line.
struct ComputeLine {
  double first_tokens = 0, first_seconds = 0, seconds_each = 0;

  int64_t tokens_that_take(double seconds) const {
    return static_cast<int64_t>(first_tokens + (seconds - first_seconds) / seconds_each);
  }
  void pass_through(double tokens, double seconds) {
    first_tokens = tokens;
    first_seconds = seconds;
  }
};

ComputeLine compute_line(const Arguments& arguments) {
  std::printf("choosing the tokens, everything in RAM:\n");
  const int64_t few = arguments.gpu ? 16384 : 128, many = 4 * few;
  const double of_few = train(arguments, workload_of(few), false, 2).least_seconds;
  const double of_many = train(arguments, workload_of(many), false, 2).least_seconds;
  return {static_cast<double>(few), of_few, (of_many - of_few) / static_cast<double>(many - few)};
}

struct Comparison {
  double compute = 0;  // seconds alone
  double disk = 0;     // seconds alone
  double efficiency = 0;

  bool hard() const { return compute / disk >= kLeastShare && compute / disk <= kMostShare; }
  static constexpr double kLeastShare = 0.8, kMostShare = 1.25;
};

// nullopt: the bits differ. The drives alone are timed before and after, as they drift.
std::optional<Comparison> compare(const Arguments& arguments, const Workload& workload) {
  std::printf("%lld tokens, everything in RAM:\n", static_cast<long long>(workload.tokens()));
  const Measured ram = train(arguments, workload, false, kTimedSteps);
  const Traffic traffic = everything_on_disk(arguments, workload);
  std::vector<double> alone = disk_seconds(arguments, traffic);
  std::printf("%lld tokens, everything on disk:\n", static_cast<long long>(workload.tokens()));
  const Measured disk = train(arguments, workload, true, kTimedSteps);
  std::ranges::copy(disk_seconds(arguments, traffic), std::back_inserter(alone));
  if (!arguments.gpu && (disk.losses != ram.losses || disk.state_hash != ram.state_hash)) return std::nullopt;
  Comparison result{.compute = ram.seconds, .disk = median(alone)};
  const double update = result.disk * static_cast<double>(traffic.update_bytes) /
                        static_cast<double>(traffic.read_bytes + traffic.written_bytes);
  const double forward = ram.forward_seconds;
  const double chained = result.compute - forward + std::max(forward, update);
  std::printf(
      "  compute alone %.3f s (forward %.3f), disk alone %.3f s (updates %.3f), compute / disk %.2f\n",
      result.compute, forward, result.disk, update, result.compute / result.disk);
  std::printf("  backward + max(forward, update) %.3f s; step %.3f s (forward %.3f)\n", chained, disk.seconds,
              disk.forward_seconds);
  result.efficiency = std::max({result.compute, result.disk, chained}) / disk.seconds;
  return result;
}

int run(const Arguments& arguments) {
  std::optional<ComputeLine> line;
  int64_t tokens = arguments.tokens;
  if (tokens == 0) {
    line = compute_line(arguments);
    tokens = line->tokens_that_take(
        median(disk_seconds(arguments, everything_on_disk(arguments, workload_of(128)))));
  }
  constexpr int kMostTries = 3;
  for (int tries = 1;; ++tries) {
    const Workload workload = workload_of(std::max<int64_t>(64, tokens));
    const std::optional<Comparison> result = compare(arguments, workload);
    if (!result) {
      std::printf("WRONG: the bits differ from those in RAM\n");
      return 1;
    }
    if (!line || result->hard() || tries == kMostTries) {
      std::printf("ratio offload_efficiency %.3f\n", result->efficiency);
      if (!line || result->hard()) return 0;
      std::printf("FAILED: compute and disk are too far apart to say something about hiding\n");
      return 1;
    }
    line->pass_through(static_cast<double>(workload.tokens()), result->compute);
    tokens = line->tokens_that_take(result->disk);
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  using namespace sluice;
  bench::Arguments arguments;
  std::string gpu;
  bench::Program program("bench_offload_step", "How much of the drives' time hides under compute.");
  program.add(
      {.name = "dtype",
       .value = choice_value<DType>(arguments.dtype, {{"fp32", DType::f32}, {"bf16", DType::bf16}}, 2),
       .help = "of compute"});
  program.add({.name = "folder", .value = text_value(arguments.folder, "DIR"), .help = "on the drive"});
  program.add({.name = "tokens",
               .value = integer_value(arguments.tokens, {.minimum = 0}),
               .help = "of a step; 0: as many as make compute and disk take as long"});
  program.add({.name = "as", .value = text_value(gpu, "GPU"), .help = "a modelled GPU, by name or numbers"});
  return program.main(count, values, [&] {
    if (!gpu.empty()) arguments.gpu = gpu::gpu_model(gpu);
    return bench::run(arguments);
  });
}
