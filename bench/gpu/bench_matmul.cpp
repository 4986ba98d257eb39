#include <cstdio>
#include <cstdlib>
#include <exception>

#include "apps/common/pool.h"
#include "bench/support/matmul_rate.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/matmul_library.h"

// GFLOP/s of the host's linear ops against one whole call of the matmul library, for the shapes of SmolLM2
// (1024 tokens). Results are compared before they are timed. Usage: bench_matmul [threads] [rounds].
namespace sluice::bench {
namespace {

void report(const LinearShape& shape, Direction direction, DType dtype, Executor& pool, int rounds) {
  const MatmulSeconds time = matmul_seconds(shape, direction, dtype, pool, rounds);
  const double giga = shape.flops() * 1e-9;
  std::printf("%-8s %-5s %5d x %-5d own %7.1f GFLOP/s, %s %7.1f GFLOP/s\n", name(direction),
              sluice::name(dtype).data(), static_cast<int>(shape.inputs), static_cast<int>(shape.outputs),
              giga / time.own, gpu::host::library_name(), giga / time.library);
  std::printf("ratio %s_%s_%dx%d_vs_%s %.3f\n", name(direction), sluice::name(dtype).data(),
              static_cast<int>(shape.inputs), static_cast<int>(shape.outputs), gpu::host::library_name(),
              time.library / time.own);
  std::fflush(stdout);
}

void run(int threads, int rounds) {
  const std::unique_ptr<Executor> pool = make_pool(threads);
  std::printf("kernel table %s, %d threads, best of %d rounds\n", gpu::host::kernel_table_id().c_str(),
              pool->thread_count(), rounds);
  const LinearShape shapes[] = {
      {1024, 576, 960}, {1024, 576, 576}, {1024, 576, 3072}, {1024, 1536, 576}, {1024, 576, 8192}};
  for (DType dtype : {DType::f32, DType::bf16})
    for (const LinearShape& shape : shapes)
      for (Direction direction : {Direction::forward, Direction::backward_input, Direction::backward_weight})
        report(shape, direction, dtype, *pool, rounds);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  try {
    sluice::bench::run(argc > 1 ? std::atoi(argv[1]) : 0, argc > 2 ? std::atoi(argv[2]) : 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_matmul: %s\n", error.what());
    return 1;
  }
}
