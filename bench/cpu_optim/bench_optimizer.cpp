// AdamW over 100M parameters against what memory allows: a read-modify-write of the same streams, widths and
// store kinds.
//
//   bench_optimizer [--parameters N] [--rounds N]
//
// The limit is taken at its best prefetch distance. First compares the very kernels that it times with the
// double oracle, then prints seconds per 1B parameters with one and with all threads, and `ratio NAME_vs_rmw
// R`: the limit's best time over the kernel's best time. Tries of kernel and limit alternate, so that a
// drifting machine slows both. A ratio over 1.03 means that the limit is wrong: exit code 1.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "apps/common/pool.h"
#include "cpu_optim/adamw.h"
#include "cpu_optim/convert.h"
#include "cpu_optim/pieces.h"
#include "cpu_optim/reference/adamw.h"

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
HWY_EXPORT(touch_fp32);

// Zeroed memory in huge pages: 4 KiB pages cost 3 to 13 % (facts/optimizer.md).
template <class T>
class HugePages {
 public:
  explicit HugePages(int64_t size) : size_(static_cast<size_t>(size)) {
    // A page more, so that the start can be moved onto a huge page.
    mapped_bytes_ = (size_ * sizeof(T) + (2 * kHugePage) - 1) / kHugePage * kHugePage;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SLUICE_CHECK(mapped_ != MAP_FAILED);
    madvise(mapped_, mapped_bytes_, MADV_HUGEPAGE);
    const auto start = (reinterpret_cast<uintptr_t>(mapped_) + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<T*>(start);
  }
  ~HugePages() { munmap(mapped_, mapped_bytes_); }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  std::span<T> span() const { return {data_, size_}; }

 private:
  static constexpr size_t kHugePage = 2 << 20;
  size_t size_;
  size_t mapped_bytes_;
  void* mapped_;
  T* data_;
};

// States of both formats and a gradient; 28 bytes a parameter.
struct Memory {
  explicit Memory(int64_t size)
      : gradient(size), high(size), low(size), weight(size), master(size), m(size), v(size) {
    for (int64_t i = 0; i < size; ++i) {
      const auto k = static_cast<size_t>(i);
      gradient.span()[k] = to_bfloat16(static_cast<float>(i % 1021 - 510) * 0x1p-14f);
      master.span()[k] = static_cast<float>(i % 2039 - 1019) * 0x1p-10f;
    }
    split_masters(master.span(), high.span(), low.span());
  }
  SplitState split() const { return {high.span(), low.span(), m.span(), v.span()}; }
  Fp32State fp32() const { return {master.span(), m.span(), v.span(), weight.span()}; }

  HugePages<BFloat16> gradient, high;
  HugePages<int16_t> low;
  HugePages<BFloat16> weight;
  HugePages<float> master, m, v;
};

struct Contender {
  std::string name;
  std::function<void(int64_t begin, int64_t count)> kernel;
  std::function<void(int64_t begin, int64_t count, int64_t prefetch_distance)> limit;
};

constexpr int64_t kDistances[] = {0, 512, 1024};  // elements, of the limit's prefetches

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double best(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Times {
  std::vector<double> kernel;
  std::vector<double> limit;  // of every prefetch distance: the best one counts
  double ratio() const { return best(limit) / best(kernel); }
};

// Kernel and limit alternate and have the same number of tries.
void measure(Executor& executor, const Contender& contender, int64_t size, int rounds, Times& times) {
  for (int round = 0; round < rounds; ++round) {
    for (const int64_t distance : kDistances) {
      const auto touch = [&](int64_t begin, int64_t count) { contender.limit(begin, count, distance); };
      times.limit.push_back(seconds([&] { for_each_piece(executor, size, touch); }));
      times.kernel.push_back(seconds([&] { for_each_piece(executor, size, contender.kernel); }));
    }
  }
}

// Ten steps against the oracle; a step rounds the weight up to 4 times and the move, at most learning_rate,
// up to 16.
bool verify(int64_t size) {
  const AdamOptions options;
  Memory memory(size);
  const auto count = static_cast<size_t>(size);
  std::vector<double> w(count), m(count), v(count), g(count);
  for (size_t i = 0; i < count; ++i) {
    w[i] = memory.master.span()[i];
    g[i] = to_float(memory.gradient.span()[i]);
  }
  HugePages<float> split_m(size), split_v(size);
  const SplitState split{memory.high.span(), memory.low.span(), split_m.span(), split_v.span()};
  for (int64_t step = 1; step <= 10; ++step) {
    reference::update(w, m, v, g, options, step);
    update(memory.fp32(), memory.gradient.span(), make_adam_step(options, step));
    update(split, memory.gradient.span(), make_adam_step(options, step));
  }
  for (size_t i = 0; i < count; ++i) {
    const double tolerance = 10 * (4 * 0x1p-24 * std::abs(w[i]) + 16 * 0x1p-24 * options.learning_rate);
    const bool close = std::abs(memory.master.span()[i] - w[i]) <= tolerance;
    const bool same = join(split.high[i], split.low[i]) == memory.master.span()[i];
    if (close && same && split.m[i] == memory.m.span()[i] && split.v[i] == memory.v.span()[i]) continue;
    std::printf("element %zu is wrong: fp32 %.9g, split %.9g, oracle %.9g\n", i, memory.master.span()[i],
                join(split.high[i], split.low[i]), w[i]);
    return false;
  }
  return true;
}

template <class T>
uint32_t* as_words(const HugePages<T>& pages) {
  return reinterpret_cast<uint32_t*>(pages.span().data());
}

Contender split_contender(const Memory& memory, const AdamStep& step) {
  const SplitState state = memory.split();
  const FloatView gradient(memory.gradient.span());
  const Streams streams{.gradient = as_words(memory.gradient),
                        .floats = {as_words(memory.m), as_words(memory.v)},
                        .words = {as_words(memory.high), as_words(memory.low)}};
  return {"split",
          [=](int64_t begin, int64_t count) {
            update(state.subrange(begin, count), gradient.subrange(begin, count), step);
          },
          [=](int64_t begin, int64_t count, int64_t distance) {
            HWY_DYNAMIC_DISPATCH(touch_split)(streams, begin, count, distance);
          }};
}

Contender fp32_contender(const Memory& memory, const AdamStep& step) {
  const Fp32State state = memory.fp32();
  const FloatView gradient(memory.gradient.span());
  const Streams streams{.gradient = as_words(memory.gradient),
                        .floats = {as_words(memory.master), as_words(memory.m), as_words(memory.v)},
                        .streamed = as_words(memory.weight)};
  return {"fp32",
          [=](int64_t begin, int64_t count) {
            update(state.subrange(begin, count), gradient.subrange(begin, count), step);
          },
          [=](int64_t begin, int64_t count, int64_t distance) {
            HWY_DYNAMIC_DISPATCH(touch_fp32)(streams, begin, count, distance);
          }};
}

constexpr double kHighestRatio = 1.03;

bool report(const Contender& contender, int64_t size, int threads, int rounds, bool print_ratio) {
  const auto pool = make_pool(threads);
  Times times;
  // Other programs on the machine may have spoilt every try of the limit: it gets more of them before it is
  // judged.
  for (int attempt = 0; attempt == 0 || (attempt < 4 && times.ratio() > kHighestRatio); ++attempt) {
    measure(*pool, contender, size, rounds, times);
  }
  const double per_billion = 1e9 / static_cast<double>(size);
  std::printf("%-6s %2d threads: %.3f s per 1B parameters (median %.3f), limit %.3f (median %.3f)\n",
              contender.name.c_str(), pool->thread_count(), best(times.kernel) * per_billion,
              median(times.kernel) * per_billion, best(times.limit) * per_billion,
              median(times.limit) * per_billion);
  if (print_ratio) std::printf("ratio %s_vs_rmw %.3f\n", contender.name.c_str(), times.ratio());
  std::fflush(stdout);
  return times.ratio() <= kHighestRatio;
}

int run(int64_t size, int rounds) {
  if (!verify(4097) || !verify(100'003)) return 1;
  const Memory memory(size);
  bool limits_hold = true;
  const AdamStep step = make_adam_step({.learning_rate = 1e-5}, 100, 0.9f);
  for (const Contender& contender : {split_contender(memory, step), fp32_contender(memory, step)}) {
    report(contender, size, 1, rounds, false);
    limits_hold &= report(contender, size, usable_core_count(), rounds, true);
  }
  if (!limits_hold) std::printf("a kernel is faster than its limit: the limit is wrong\n");
  return limits_hold ? 0 : 1;
}

}  // namespace
}  // namespace sluice::cpu_optim

int main(int argc, char** argv) {
  int64_t parameters = 100'000'000;
  int rounds = 6;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--parameters") == 0) parameters = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::atoi(argv[i + 1]);
  }
  return sluice::cpu_optim::run(parameters, rounds);
}
#endif  // HWY_ONCE
