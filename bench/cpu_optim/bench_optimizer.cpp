// AdamW over 100M parameters in every state format, against what memory allows: a read-modify-write of the
// same streams, widths and store kinds.
//
//   bench_optimizer [--parameters N] [--rounds N]
//
// First compares the very kernels that it times with the double oracle, then prints, with one and with all
// threads, the least seconds per 1B parameters of each format, of its limit at the best prefetch distance,
// and of the kernel in the cache (arithmetic alone); and for all threads `ratio NAME_vs_rmw R`, the limit's
// time over the kernel's, and `ratio NAME_vs_fp32 R`, the kernel's over that of fp32. A ratio is the median
// of those of single runs, one right after the other: so a drifting machine slows both, and one lucky moment
// decides nothing. A NAME_vs_rmw over 1.03 means that the limit is wrong: exit code 1.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "apps/common/median.h"
#include "apps/common/pool.h"
#include "bench/cpu_optim/huge_pages.h"
#include "bench/support/program.h"
#include "cpu_optim/adamw.h"
#include "cpu_optim/pieces.h"
#include "cpu_optim/reference/state.h"

// foreach_target.h compiles this file once per instruction set, so its place matters.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/cpu_optim/bench_optimizer.cpp"
// clang-format off
#include "hwy/foreach_target.h"
#include "bench/cpu_optim/read_modify_write-inl.h"
#include "hwy/highway.h"
// clang-format on

#if HWY_ONCE
namespace sluice::cpu_optim {
namespace {

HWY_EXPORT(touch_split);
HWY_EXPORT(touch_split_bf16);
HWY_EXPORT(touch_bf16);
HWY_EXPORT(touch_int8);
HWY_EXPORT(touch_fp32);

constexpr StateFormat kFormats[] = {StateFormat::fp32, StateFormat::split, StateFormat::split_bf16,
                                    StateFormat::bf16, StateFormat::int8};
constexpr int64_t kDistances[] = {0, 128, 256, 512};  // elements, of the limit's prefetches
constexpr double kHighestRatio = 1.03;
constexpr uint64_t kSeed = 1;

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

// Numbers of two runs that differ by more than fp32 arithmetic explains: a step rounds the weight up to 4
// times and the move, at most learning_rate, up to 16; a moment up to 8 times.
int64_t count_different(const reference::Numbers& ours, const reference::Numbers& theirs,
                        double learning_rate) {
  constexpr double kUnit = 0x1p-24;
  int64_t different = 0;
  for (size_t i = 0; i < ours.w.size(); ++i) {
    const double w_error = kUnit * (4 * std::abs(theirs.w[i]) + 16 * learning_rate);
    different += std::abs(ours.w[i] - theirs.w[i]) > w_error ? 1 : 0;
    different += std::abs(ours.m[i] - theirs.m[i]) > 8 * kUnit * std::abs(theirs.m[i]) + 0x1p-149 ? 1 : 0;
    different += std::abs(ours.v[i] - theirs.v[i]) > 8 * kUnit * theirs.v[i] + 0x1p-149 ? 1 : 0;
  }
  return different;
}

// Ten steps, each against a step of the oracle from the same bytes. Where numbers are rounded by a draw, fp32
// arithmetic may tip one in thousands the other way (2^-24 of a number beside steps of 2^-8, and an error
// that m has from the cancelling of its terms).
bool verify(StateFormat format, int64_t size) {
  const AdamOptions options;
  const StateMemory memory(format, size);
  const GradientMemory gradient(size);
  std::vector<double> exact(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) exact[static_cast<size_t>(i)] = to_float(gradient.view().bf16()[i]);
  const StateMemory oracle(format, size);
  const auto copy_state = [&](const StateSpan& from, const StateSpan& to) {
    std::copy_n(from.weight, size, to.weight);
    std::copy_n(from.low, low_bytes(format, size), to.low);
    std::copy_n(from.first_moment, moment_bytes(format, size), to.first_moment);
    std::copy_n(from.second_moment, moment_bytes(format, size), to.second_moment);
  };
  const bool rounded = format != StateFormat::fp32 && format != StateFormat::split;
  for (int64_t step = 1; step <= 10; ++step) {
    copy_state(memory.span(), oracle.span());
    reference::update(oracle.span(), exact, options, step, 1, kSeed);
    update(memory.span(), gradient.view(), make_adam_step(options, step, 1, kSeed));
    const int64_t different = count_different(reference::decode(memory.span()),
                                              reference::decode(oracle.span()), options.learning_rate);
    if (different > (rounded ? 3 * size / 1000 : 0)) {
      std::printf("%s is wrong: %lld of %lld numbers differ from the oracle's in step %lld\n",
                  std::string(name(format)).c_str(), static_cast<long long>(different),
                  static_cast<long long>(3 * size), static_cast<long long>(step));
      return false;
    }
  }
  return true;
}

void touch(const StateSpan& state, FloatView gradient, int64_t begin, int64_t count, int64_t distance) {
  const auto words = [](auto* stream) { return reinterpret_cast<uint32_t*>(stream); };
  Streams streams{.gradient = reinterpret_cast<const uint32_t*>(gradient.bf16())};
  uint32_t *weight = words(state.weight), *low = words(state.low), *m = words(state.first_moment),
           *v = words(state.second_moment);
  switch (state.format) {
    case StateFormat::split:
      streams.floats[0] = m, streams.floats[1] = v, streams.words[0] = weight, streams.words[1] = low;
      return HWY_DYNAMIC_DISPATCH(touch_split)(streams, begin, count, distance);
    case StateFormat::split_bf16:
      streams.words[0] = weight, streams.words[1] = low, streams.words[2] = m, streams.words[3] = v;
      return HWY_DYNAMIC_DISPATCH(touch_split_bf16)(streams, begin, count, distance);
    case StateFormat::bf16:
      streams.words[0] = weight, streams.words[1] = m, streams.words[2] = v;
      return HWY_DYNAMIC_DISPATCH(touch_bf16)(streams, begin, count, distance);
    case StateFormat::int8:
      streams.words[0] = weight, streams.records[0] = m, streams.records[1] = v;
      return HWY_DYNAMIC_DISPATCH(touch_int8)(streams, begin, count, distance);
    case StateFormat::fp32:
      streams.floats[0] = low, streams.floats[1] = m, streams.floats[2] = v, streams.streamed = weight;
      return HWY_DYNAMIC_DISPATCH(touch_fp32)(streams, begin, count, distance);
  }
}

struct Contender {
  StateFormat format;
  std::unique_ptr<StateMemory> memory;
  // Seconds. The runs of a kernel come in turns with those of its limit at each of the distances.
  std::vector<double> kernel;
  std::array<std::vector<double>, std::size(kDistances)> limits;
  double in_cache = 0;  // seconds per 1B parameters
};

double median_ratio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return median(ratios);
}

// At the distance that is best for the limit.
double limit_ratio(const Contender& contender) {
  double least = 1e9;
  for (size_t d = 0; d < contender.limits.size(); ++d) {
    std::vector<double> kernel;  // beside this distance
    for (size_t i = d; i < contender.kernel.size(); i += contender.limits.size())
      kernel.push_back(contender.kernel[i]);
    least = std::min(least, median_ratio(contender.limits[d], kernel));
  }
  return least;
}

// All threads at once, each on elements of its own that stay in its cache.
double seconds_in_cache(Executor& executor, const Contender& contender, FloatView gradient,
                        const AdamStep& step) {
  constexpr int64_t kElements = 4096, kRepeats = 50;
  const int threads = executor.thread_count();
  double fastest = 1e9;
  for (int attempt = 0; attempt < 100; ++attempt) {
    fastest = std::min(fastest, seconds([&] {
                         executor.run(threads, [&](int64_t task, int) {
                           const StateSpan part = contender.memory->span().subrange(task * 65536, kElements);
                           for (int64_t repeat = 0; repeat < kRepeats; ++repeat) {
                             update(part, gradient.subrange(task * 65536, kElements), step);
                           }
                         });
                       }));
  }
  return fastest / static_cast<double>(kElements * kRepeats * threads) * 1e9;
}

void measure(Executor& executor, std::vector<Contender>& contenders, FloatView gradient, int rounds) {
  const AdamStep step = make_adam_step({.learning_rate = 1e-5}, 100, 0.9f, kSeed);
  for (int round = 0; round < rounds; ++round) {
    for (size_t d = 0; d < std::size(kDistances); ++d) {
      for (Contender& contender : contenders) {
        const StateSpan state = contender.memory->span();
        const auto touch_all = [&] {
          for_each_piece(executor, state.size, [&](int64_t begin, int64_t count) {
            touch(state, gradient, begin, count, kDistances[d]);
          });
        };
        contender.limits[d].push_back(seconds(touch_all));
        contender.kernel.push_back(seconds([&] { update(executor, state, gradient, step); }));
      }
    }
  }
  for (Contender& contender : contenders) {
    contender.in_cache = seconds_in_cache(executor, contender, gradient, step);
  }
}

void print(const Contender& contender, int threads) {
  const double per_billion = 1e9 / static_cast<double>(contender.memory->span().size);
  double least = 1e9, typical = 1e9;
  for (const std::vector<double>& limit : contender.limits) {
    least = std::min(least, best(limit) * per_billion);
    typical = std::min(typical, median(limit) * per_billion);
  }
  std::printf(
      "%-10s %2d threads: %.3f s per 1B parameters (median %.3f); read-modify-write %.3f (median "
      "%.3f), arithmetic %.3f: %s binds\n",
      std::string(name(contender.format)).c_str(), threads, best(contender.kernel) * per_billion,
      median(contender.kernel) * per_billion, least, typical, contender.in_cache,
      contender.in_cache > least ? "arithmetic" : "memory");
}

bool over_limit(const Contender& contender) {
  return limit_ratio(contender) > kHighestRatio;
}

// False if a kernel is faster than what should be its limit.
bool report(int threads, std::vector<Contender>& contenders, FloatView gradient, int rounds,
            bool print_ratios) {
  const auto pool = make_pool(threads);
  for (Contender& contender : contenders) contender.kernel.clear(), contender.limits = {};
  // Other programs on the machine may have spoilt most rounds: there are more of them before a limit is
  // judged.
  for (int attempt = 0; attempt < 4; ++attempt) {
    measure(*pool, contenders, gradient, rounds);
    if (std::none_of(contenders.begin(), contenders.end(), over_limit)) break;
  }
  for (const Contender& contender : contenders) print(contender, pool->thread_count());
  for (const Contender& contender : contenders) {
    const std::string format(name(contender.format));
    if (!print_ratios) continue;
    std::printf("ratio %s_vs_rmw %.3f\n", format.c_str(), limit_ratio(contender));
    if (contender.format == StateFormat::fp32) continue;
    std::printf("ratio %s_vs_fp32 %.3f\n", format.c_str(),
                median_ratio(contender.kernel, contenders[0].kernel));
  }
  std::fflush(stdout);
  return std::none_of(contenders.begin(), contenders.end(), over_limit);
}

// What PyTorch's and DeepSpeed's optimizers do by themselves: fp32 gradient in, no bf16 weight out.
void report_bare_fp32(const StateMemory& memory, int rounds) {
  const auto pool = make_pool(usable_core_count());
  StateSpan state = memory.span();
  state.weight = nullptr;
  const HugePages gradient(static_cast<size_t>(state.size) * sizeof(float));
  std::fill_n(gradient.as<float>(), state.size, 0x1p-14f);
  const FloatView view(DType::f32, gradient.as<float>(), state.size);
  const AdamStep step = make_adam_step({.learning_rate = 1e-5}, 100, 0.9f);
  double fastest = 1e9;
  for (int round = 0; round < 3 * rounds; ++round) {
    fastest = std::min(fastest, seconds([&] { update(*pool, state, view, step); }));
  }
  std::printf("bare_fp32  %2d threads: %.3f s per 1B parameters\n", pool->thread_count(),
              fastest / static_cast<double>(state.size) * 1e9);
}

int run(int64_t size, int rounds) {
  for (const StateFormat format : kFormats) {
    if (!verify(format, 4097) || !verify(format, 100'003)) return 1;
  }
  const GradientMemory gradient(size);
  std::vector<Contender> contenders;
  for (const StateFormat format : kFormats) {
    contenders.push_back({format, std::make_unique<StateMemory>(format, size), {}, {}, 0});
  }
  report(1, contenders, gradient.view(), rounds, false);
  report_bare_fp32(*contenders[0].memory, rounds);
  if (report(usable_core_count(), contenders, gradient.view(), rounds, true)) return 0;
  std::printf("a kernel is faster than its limit: the limit is wrong\n");
  return 1;
}

}  // namespace
}  // namespace sluice::cpu_optim

int main(int count, char** values) {
  using namespace sluice;
  int64_t parameters = 100'000'000, rounds = 0;
  bench::Program program("bench_optimizer", "The optimizer against a read-modify-write of its streams.");
  program.add(
      {.name = "parameters", .value = integer_value(parameters, {.minimum = 1}), .help = "of a state"});
  program.add({.name = "rounds",
               .value = integer_value(rounds, {.minimum = 0, .maximum = 1000}),
               .help = "0: 7, with --full 21"});
  return program.main(count, values, [&] {
    if (rounds == 0) rounds = program.full() ? 21 : 7;
    return cpu_optim::run(parameters, static_cast<int>(rounds));
  });
}
#endif  // HWY_ONCE
