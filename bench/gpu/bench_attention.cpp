#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <sys/mman.h>
#include <vector>

#include "apps/common/pool.h"
#include "bench/support/matmul_rate.h"
#include "engine/base/float_bits.h"
#include "engine/base/math.h"
#include "gpu/host/attention.h"
#include "gpu/host/kernel_table.h"

// GFLOP/s of causal attention (matmuls of the lower triangle; softmax is in the time, not in the flops)
// against the rate of a plain matmul of 576 x 576 in the same run. SmolLM2's heads: 9 and 3 of 64 channels.
// Usage: bench_attention [threads] [rounds].
namespace sluice::bench {
namespace {

using gpu::View;
using gpu::Workspace;
using Clock = std::chrono::steady_clock;

constexpr int64_t kHeads = 9, kKeyHeads = 3, kDim = 64;

struct Matrix {
  Matrix(DType type, int64_t row_count, int64_t col_count, uint32_t seed)
      : dtype(type),
        rows(row_count),
        cols(col_count),
        bytes(static_cast<size_t>(rows * cols) * size_bytes(type)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * cols; ++i) {
      if (dtype == DType::f32)
        reinterpret_cast<float*>(bytes.data())[i] = normal(random);
      else
        reinterpret_cast<BFloat16*>(bytes.data())[i] = to_bfloat16(normal(random));
    }
  }
  View view() { return View(bytes.data(), dtype, rows, cols); }
  double at(int64_t row, int64_t col) {
    return dtype == DType::f32 ? static_cast<double>(view().row<float>(row)[col])
                               : static_cast<double>(to_float(view().row<BFloat16>(row)[col]));
  }
  DType dtype;
  int64_t rows, cols;
  std::vector<std::byte> bytes;
};

struct Problem {
  Problem(DType dtype, int64_t documents, int64_t length)
      : rows(documents * length),
        q(dtype, rows, kHeads * kDim, 1),
        k(dtype, rows, kKeyHeads * kDim, 2),
        v(dtype, rows, kKeyHeads * kDim, 3),
        o(dtype, rows, kHeads * kDim, 4),
        lse(DType::f32, rows, kHeads, 5),
        d_o(dtype, rows, kHeads * kDim, 6),
        dq(dtype, rows, kHeads * kDim, 7),
        dk(dtype, rows, kKeyHeads * kDim, 8),
        dv(dtype, rows, kKeyHeads * kDim, 9) {
    auto list = std::make_shared<std::vector<gpu::AttentionSegment>>();
    for (int64_t i = 0; i < documents; ++i) list->push_back({i * length, length, i * length, length});
    const gpu::AttentionShape shape{kHeads, kKeyHeads, kDim, 0.125f};
    forward = {shape, list, q.view(), k.view(), v.view(), o.view(), lse.view()};
    backward = {shape,      list,       q.view(),  k.view(),  v.view(), o.view(),
                lse.view(), d_o.view(), dq.view(), dk.view(), dv.view()};
  }
  // The last row of each head against loops in double.
  void verify(double unit) {
    const gpu::AttentionSegment& segment = forward.segments->back();
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t key_head = h / (kHeads / kKeyHeads);
      std::vector<double> sum(kDim);
      double total = 0;
      for (int64_t j = segment.key_begin; j < rows; ++j) {
        double score = 0;
        for (int64_t d = 0; d < kDim; ++d)
          score += q.at(rows - 1, h * kDim + d) * k.at(j, key_head * kDim + d);
        const double weight = std::exp(score * 0.125);
        total += weight;
        for (int64_t d = 0; d < kDim; ++d)
          sum[static_cast<size_t>(d)] += weight * v.at(j, key_head * kDim + d);
      }
      for (int64_t d = 0; d < kDim; ++d)
        if (!(std::abs(o.at(rows - 1, h * kDim + d) - sum[static_cast<size_t>(d)] / total) <= 8 * unit))
          throw Error(ErrorKind::runtime,
                      "attention differs from the textbook in head " + std::to_string(h) + ".");
    }
  }
  int64_t rows;
  Matrix q, k, v, o, lse, d_o, dq, dk, dv;
  gpu::AttentionForward forward;
  gpu::AttentionBackward backward;
};

// Scratch in huge pages, as a device's arena has it.
class HugeBytes {
 public:
  explicit HugeBytes(size_t size)
      : size_(round_up(size + 1, kPage)), data_(static_cast<std::byte*>(std::aligned_alloc(kPage, size_))) {
    madvise(data_, size_, MADV_HUGEPAGE);
  }
  ~HugeBytes() { std::free(data_); }
  HugeBytes(const HugeBytes&) = delete;
  HugeBytes& operator=(const HugeBytes&) = delete;
  Workspace workspace() const { return {data_, size_}; }

 private:
  static constexpr size_t kPage = size_t{2} << 20;
  size_t size_;
  std::byte* data_;
};

template <class Op>
double best_seconds(const Op& op, Executor& pool, int rounds) {
  const HugeBytes memory(gpu::host::workspace_bytes(op, pool.thread_count()));
  double best = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = Clock::now();
    gpu::host::run(op, pool, memory.workspace());
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

void report(DType dtype, int64_t documents, int64_t length, Executor& pool, int rounds) {
  Problem problem(dtype, documents, length);
  const double forward = best_seconds(problem.forward, pool, rounds);
  problem.verify(dtype == DType::f32 ? 0x1p-20 : 0x1p-8);
  const double backward = best_seconds(problem.backward, pool, rounds);
  const LinearShape plain{1024, 576, 576};
  const double limit = plain.flops() / matmul_seconds(plain, Direction::forward, dtype, pool, rounds).best();
  const double forward_flops = gpu::matmul_flops(problem.forward);
  const double backward_flops = gpu::matmul_flops(problem.backward);
  const double rate = (forward_flops + backward_flops) / (forward + backward);
  std::printf("%-5s %2d x %-5d forward %6.1f, backward %6.1f, both %6.1f GFLOP/s; matmul %6.1f\n",
              name(dtype).data(), static_cast<int>(documents), static_cast<int>(length),
              forward_flops / forward * 1e-9, backward_flops / backward * 1e-9, rate * 1e-9, limit * 1e-9);
  std::printf("ratio attention_%s_%dx%d_vs_matmul %.3f\n", name(dtype).data(), static_cast<int>(documents),
              static_cast<int>(length), rate / limit);
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    const std::unique_ptr<sluice::Executor> pool = sluice::make_pool(argc > 1 ? std::atoi(argv[1]) : 0);
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
    std::printf("kernel table %s, %d threads, best of %d rounds\n",
                sluice::gpu::host::kernel_table_id().c_str(), pool->thread_count(), rounds);
    for (sluice::DType dtype : {sluice::DType::f32, sluice::DType::bf16}) {
      sluice::bench::report(dtype, 2, 512, *pool, rounds);
      sluice::bench::report(dtype, 1, 2048, *pool, rounds);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_attention: %s\n", error.what());
    return 1;
  }
}
