// How near a whole training step comes to its matmuls alone: SmolLM2-135M's shape with random weights, 2
// micro-batches of 2 rows of 512 tokens, 1 + 3 optimizer steps. The limit is the time of the linear layers
// and the head (no recompute, no attention) at the best rate that the same shapes reach in the same run.
//
//   bench_train_step [--full] [--dtype fp32|bf16] [--lean | --fast]
//
// Prints tokens/s, memory and `ratio step_vs_matmul R` (with --full `ratio step_vs_matmul_DTYPE_PLAN R` for
// all).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/median.h"
#include "apps/finetune/runtime.h"
#include "apps/finetune/trainer.h"
#include "bench/support/matmul_rate.h"
#include "bench/support/program.h"
#include "bench/support/train_workload.h"

namespace sluice::bench {
namespace {

using finetune::MicroBatch;
using finetune::Trainer;
using finetune::TrainerOptions;

constexpr Workload kWorkload{};
constexpr int kTimedSteps = 3;

// The kernels that will be timed against plain loops in double precision: one step of one layer, loss and
// norm.
bool verify(DType dtype) {
  ModelConfig config = smollm2(1);
  config.vocab_size = 1024;
  double loss[2], norm[2];
  for (const bool reference : {false, true}) {
    finetune::Runtime runtime = finetune::make_runtime({.reference_ops = reference});
    const Workload small{.rows = 1, .row_tokens = 64};
    Trainer trainer(*runtime.device, *runtime.pool, config, trainer_options(dtype, small));
    fill_weights(trainer.engine().store());
    const finetune::StepReport report = trainer.step(scattered_batches(small, config.vocab_size), 1e-4);
    loss[reference] = report.loss;
    norm[reference] = report.gradient_norm;
  }
  const double limit =
      dtype == DType::f32 ? 1e-5 : 1e-2;  // 64 tokens, sums of 1536: far above rounding, far below an error
  const bool good =
      std::abs(loss[0] - loss[1]) <= limit * loss[1] && std::abs(norm[0] - norm[1]) <= limit * norm[1];
  std::printf("verify %s: loss %.6f for %.6f, gradient norm %.6f for %.6f: %s\n",
              std::string(name(dtype)).c_str(), loss[0], loss[1], norm[0], norm[1], good ? "ok" : "WRONG");
  return good;
}

double limit_seconds(const ModelConfig& config, DType dtype, Executor& pool) {
  const int64_t tokens = kWorkload.rows * kWorkload.row_tokens;
  const int64_t query = config.head_count * config.head_dim;
  const int64_t key = config.kv_head_count * config.head_dim;
  struct Counted {
    LinearShape shape;
    double count;
  };
  const double layers = static_cast<double>(config.layer_count);
  const std::vector<Counted> shapes{{{tokens, config.hidden_size, query + 2 * key}, layers},
                                    {{tokens, query, config.hidden_size}, layers},
                                    {{tokens, config.hidden_size, 2 * config.intermediate_size}, layers},
                                    {{tokens, config.intermediate_size, config.hidden_size}, layers},
                                    {{tokens, config.hidden_size, config.vocab_size}, 1}};
  double seconds = 0, flops = 0;
  for (const Counted& counted : shapes) {
    for (const Direction direction :
         {Direction::forward, Direction::backward_input, Direction::backward_weight}) {
      const int rounds = counted.count > 1 ? 7 : 3;
      seconds += counted.count * matmul_seconds(counted.shape, direction, dtype, pool, rounds).best();
      flops += counted.count * counted.shape.flops();
    }
  }
  std::printf("  matmuls alone: %.3f s a micro-batch, %.0f GFLOP/s\n", seconds, flops / seconds * 1e-9);
  return seconds * kWorkload.micro_batch_count;
}

struct Run {
  DType dtype;
  bool lean;
};

double measure(const Run& run, const std::string& ratio_name) {
  finetune::Runtime runtime = finetune::make_runtime({});
  const ModelConfig config = smollm2(30);
  const size_t base_bytes = finetune::resident_bytes();
  TrainerOptions options = trainer_options(run.dtype, kWorkload);
  if (run.lean) {
    options.recompute = Recompute::all;
    options.prefetch_distance = 0;
  }
  const std::vector<MicroBatch> batches = scattered_batches(kWorkload, config.vocab_size);
  finetune::PeakMemory peak;
  Trainer trainer(*runtime.device, *runtime.pool, config, options);
  fill_weights(trainer.engine().store());
  std::vector<double> step_seconds;
  finetune::StepReport report;
  std::printf("%s, %s plan:\n", std::string(name(run.dtype)).c_str(), run.lean ? "lean" : "fast");
  for (int step = 0; step < 1 + kTimedSteps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    report = trainer.step(batches, 1e-4);
    if (step > 0) {
      step_seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::printf("  step %d: loss %.5f, gradient norm %.4f, %.3f s\n", step, report.loss, report.gradient_norm,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  trainer.engine().wait();
  const double step = median(step_seconds);
  const Plan& plan = trainer.engine().plan();
  const double planned =
      static_cast<double>(plan.peak_bytes(Tier::device) + plan.peak_bytes(Tier::host) + base_bytes);
  std::printf("  memory: peak %.2f GB (base %.2f); planned device %.2f, host %.2f; measured / planned %.3f\n",
              static_cast<double>(peak.bytes()) * 1e-9, static_cast<double>(base_bytes) * 1e-9,
              static_cast<double>(plan.peak_bytes(Tier::device)) * 1e-9,
              static_cast<double>(plan.peak_bytes(Tier::host)) * 1e-9,
              static_cast<double>(peak.bytes()) / planned);
  const double limit = limit_seconds(config, run.dtype, *runtime.pool);
  const double tokens = static_cast<double>(kWorkload.tokens());
  std::printf("  median step %.3f s, %.0f tokens/s, blocked in acquire %.3f s\n", step, tokens / step,
              report.acquire_blocked_seconds);
  std::printf("ratio %s %.3f\n", ratio_name.c_str(), limit / step);
  return limit / step;
}

struct Arguments {
  std::optional<DType> dtype;  // none: the faster one here
  bool lean = false;
  bool full = false;
};

int run(const Arguments& arguments) {
  const DType dtype =
      arguments.dtype.value_or(finetune::make_runtime({}).device->traits().preferred_compute_dtype);
  if (!verify(dtype)) return 1;
  if (!arguments.full) {
    measure({dtype, arguments.lean}, "step_vs_matmul");
    return 0;
  }
  if (!verify(dtype == DType::f32 ? DType::bf16 : DType::f32)) return 1;
  for (const DType each : {DType::f32, DType::bf16}) {
    for (const bool lean : {false, true}) {
      measure({each, lean}, "step_vs_matmul_" + std::string(name(each)) + (lean ? "_lean" : "_fast"));
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  using namespace sluice;
  bench::Arguments arguments;
  bool fast = false;  // the default
  bench::Program program("bench_train_step", "How near a training step comes to its matmuls alone.");
  program.add({.name = "dtype",
               .value = choice_value<std::optional<DType>>(
                   arguments.dtype, {{"auto", std::nullopt}, {"fp32", DType::f32}, {"bf16", DType::bf16}}, 3),
               .help = "of compute"});
  program.add({.name = "lean", .value = flag_value(arguments.lean), .help = "full recompute, nothing ahead"});
  program.add({.name = "fast", .value = flag_value(fast), .help = "what is measured without --lean"});
  return program.main(count, values, [&] {
    arguments.full = program.full();
    return bench::run(arguments);
  });
}
