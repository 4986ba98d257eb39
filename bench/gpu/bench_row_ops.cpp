#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "apps/common/median.h"
#include "apps/common/pool.h"
#include "gpu/host/row_ops.h"
#include "gpu/reference/reference.h"
#include "tests/support/ops_trial.h"

// Row ops against the memory bandwidth of the same run: each op first agrees with the reference, then is
// timed in turn with a copy that moves as many bytes through the same pool. `ratio NAME_vs_copy R` is the
// copy's time over the op's, median of several rounds. Shapes are those of SmolLM2-135M at 1024 tokens.
namespace sluice::bench {
namespace {

using test::Matrix;
using test::Random;
using test::random_matrix;
using Clock = std::chrono::steady_clock;

struct Subject {
  std::string name;
  std::vector<Matrix> matrices;  // all that the op touches
  std::function<gpu::Op(const std::vector<Matrix>&)> make;
  std::vector<size_t> results;  // of these, to compare with the reference
  double tolerance = 0;         // relative to the largest element
};

void run_host(const gpu::Op& any, Executor& pool, std::vector<std::byte>& workspace) {
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { gpu::host::run(op, pool, gpu::Workspace()); }) {
          workspace.resize(std::max(workspace.size(), gpu::host::workspace_bytes(op, pool.thread_count())));
          gpu::host::run(op, pool, {workspace.data(), workspace.size()});
        }
      },
      any);
}

int64_t bytes_moved(const gpu::Op& op) {
  size_t total = 0;
  for (const gpu::MemoryAccess& access : gpu::accesses(op)) total += access.size_bytes;
  if (const auto* rope = std::get_if<gpu::Rope>(&op)) total += rope->x.span_bytes();  // read as well
  return static_cast<int64_t>(total);
}

bool verified(const Subject& subject, Executor& pool) {
  std::vector<Matrix> expected(subject.matrices), actual(subject.matrices);
  std::vector<std::byte> workspace;
  gpu::reference::run(subject.make(expected));
  run_host(subject.make(actual), pool, workspace);
  for (size_t index : subject.results) {
    double largest = 0, error = 0;
    const gpu::View& view = expected[index].view();
    for (int64_t row = 0; row < view.rows; ++row) {
      for (int64_t col = 0; col < view.cols; ++col) {
        largest = std::max(largest, std::abs(expected[index].at(row, col)));
        error = std::max(error, std::abs(expected[index].at(row, col) - actual[index].at(row, col)));
      }
    }
    if (!(error <= subject.tolerance * largest)) return false;
  }
  return true;
}

// Half of `size` bytes read, half written, in the pieces of the row ops.
void copy(std::byte* to, const std::byte* from, int64_t size, Executor& pool) {
  run_ranges(pool, size / 2, 1 << 17, [&](int64_t begin, int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void measure(benchmark::State& state, const Subject& subject, Executor& pool) {
  if (!verified(subject, pool)) return state.SkipWithError("differs from the reference");
  std::vector<Matrix> matrices(subject.matrices);
  std::vector<std::byte> workspace;
  const gpu::Op op = subject.make(matrices);
  const int64_t size = bytes_moved(op);
  std::vector<std::byte> from(static_cast<size_t>(size / 2)), to(from.size());
  std::vector<double> op_seconds, copy_seconds;
  for (auto _ : state) {
    copy_seconds.push_back(seconds_of([&] { copy(to.data(), from.data(), size, pool); }));
    op_seconds.push_back(seconds_of([&] { run_host(op, pool, workspace); }));
    state.SetIterationTime(op_seconds.back());
  }
  const double op_time = median(op_seconds), copy_time = median(copy_seconds);
  state.counters["GB/s"] = static_cast<double>(size) / op_time * 1e-9;
  state.counters["copy GB/s"] = static_cast<double>(size) / copy_time * 1e-9;
  std::printf("ratio %s_vs_copy %.2f\n", subject.name.c_str(), copy_time / op_time);
}

void add_activations(std::vector<Subject>& subjects, DType dtype) {
  Random random(1);
  constexpr int64_t kTokens = 1024, kHidden = 576, kWidth = 1536;
  const std::string suffix = "_" + std::string(name(dtype));
  const double tolerance = 8 * test::unit_roundoff(dtype) + 1e-5;
  const auto matrix = [&](int64_t rows, int64_t cols) { return random_matrix(random, dtype, rows, cols); };
  const auto floats = [&](int64_t rows, int64_t cols) {
    return random_matrix(random, DType::f32, rows, cols, 0.5, 1);
  };
  using List = const std::vector<Matrix>&;
  subjects.push_back(
      {"rms_norm_forward" + suffix,
       {matrix(kTokens, kHidden), matrix(1, kHidden), matrix(kTokens, kHidden), floats(kTokens, 1)},
       [](List m) {
         return gpu::RmsNormForward{m[0].view(), m[1].view(), m[2].view(), m[3].view(), 1e-5f};
       },
       {2, 3},
       tolerance});
  subjects.push_back(
      {"rms_norm_backward" + suffix,
       {matrix(kTokens, kHidden), matrix(kTokens, kHidden), matrix(1, kHidden), floats(kTokens, 1),
        matrix(kTokens, kHidden), matrix(kTokens, kHidden), floats(1, kHidden)},
       [](List m) {
         return gpu::RmsNormBackward{m[0].view(), m[1].view(), m[2].view(), m[3].view(),
                                     m[4].view(), m[5].view(), m[6].view(), false};
       },
       {5, 6},
       tolerance});
  subjects.push_back({"swiglu_forward" + suffix,
                      {matrix(kTokens, 2 * kWidth), matrix(kTokens, kWidth)},
                      [](List m) {
                        return gpu::SwigluForward{m[0].view(), m[1].view()};
                      },
                      {1},
                      tolerance});
  subjects.push_back({"swiglu_backward" + suffix,
                      {matrix(kTokens, 2 * kWidth), matrix(kTokens, kWidth), matrix(kTokens, 2 * kWidth),
                       matrix(kTokens, kWidth)},
                      [](List m) {
                        return gpu::SwigluBackward{m[0].view(), m[1].view(), m[2].view(), m[3].view()};
                      },
                      {2, 3},
                      tolerance});
  std::vector<int32_t> positions(kTokens);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i % 512);
  subjects.push_back(
      {"rope" + suffix,
       {matrix(kTokens, 12 * 64), test::index_column(positions), floats(512, 32), floats(512, 32)},
       [](List m) { return gpu::Rope{m[0].view(), m[1].view(), m[2].view(), m[3].view(), 64, false}; },
       {0},
       tolerance});
  subjects.push_back({"add" + suffix,
                      {matrix(kTokens, kHidden), matrix(kTokens, kHidden), matrix(kTokens, kHidden)},
                      [](List m) {
                        return gpu::Add{m[0].view(), m[1].view(), m[2].view()};
                      },
                      {2},
                      tolerance});
}

void add_loss(std::vector<Subject>& subjects) {
  Random random(2);
  constexpr int64_t kRows = 512, kPiece = 8192;
  using List = const std::vector<Matrix>&;
  std::vector<int32_t> targets(kRows, 77);
  const auto floats = [&](int64_t cols) { return random_matrix(random, DType::f32, kRows, cols, 1, 2); };
  subjects.push_back({"log_sum_exp",
                      {floats(kPiece), test::index_column(targets), floats(1), floats(1), floats(1)},
                      [](List m) {
                        return gpu::LogSumExpUpdate{m[0].view(), m[1].view(), m[2].view(), m[3].view(),
                                                    m[4].view(), 0,           true};
                      },
                      {2, 3, 4},
                      1e-5});
  for (DType dtype : {DType::f32, DType::bf16})
    subjects.push_back({"cross_entropy_backward_" + std::string(name(dtype)),
                        {floats(kPiece), test::index_column(targets), floats(1), floats(1), floats(1),
                         random_matrix(random, dtype, kRows, kPiece)},
                        [](List m) {
                          return gpu::CrossEntropyBackward{m[0].view(), m[1].view(), m[2].view(), m[3].view(),
                                                           m[4].view(), m[5].view(), 0,           1};
                        },
                        {5},
                        8 * test::unit_roundoff(dtype) + 1e-5});
  subjects.push_back({"cast_fp32_bf16",
                      {floats(1152), random_matrix(random, DType::bf16, kRows, 1152)},
                      [](List m) {
                        return gpu::Cast{m[0].view(), m[1].view()};
                      },
                      {1}});
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::unique_ptr<sluice::Executor> pool = sluice::make_pool();
  std::vector<sluice::bench::Subject> subjects;
  sluice::bench::add_activations(subjects, sluice::DType::f32);
  sluice::bench::add_activations(subjects, sluice::DType::bf16);
  sluice::bench::add_loss(subjects);
  for (const sluice::bench::Subject& subject : subjects)
    benchmark::RegisterBenchmark(
        subject.name.c_str(), [&](benchmark::State& state) { sluice::bench::measure(state, subject, *pool); })
        ->UseManualTime()
        ->Iterations(40)
        ->Unit(benchmark::kMicrosecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
