#pragma once

#include <cstddef>

#include "engine/base/executor.h"
#include "gpu/host/matmul.h"
#include "gpu/ops/ops.h"

// The linear ops on the CPU (semantics: gpu/ops/linear.h). Which matmul kernel serves is the kernel table's
// business (gpu/host/kernel_table.h). Thread-safe; the workspace belongs to the call. Bits depend on the
// kernel alone: not on threads, row chunk, number of rows in the call, strides or alignment.
namespace sluice::gpu::host {

struct LinearOptions {
  const MatmulKernel* kernel = nullptr;  // null: the table's for the dtype
  int64_t row_chunk = 0;                 // rows of one task; 0: as many as the L2 cache likes
};

void run(const LinearPack& op, Executor& executor, Workspace workspace, const LinearOptions& options = {});
void run(const LinearForward& op, Executor& executor, Workspace workspace, const LinearOptions& options = {});
void run(const LinearBackwardInput& op, Executor& executor, Workspace workspace,
         const LinearOptions& options = {});
void run(const LinearBackwardWeight& op, Executor& executor, Workspace workspace,
         const LinearOptions& options = {});

size_t workspace_bytes(const LinearPack& op, int thread_count, const LinearOptions& options = {});
size_t workspace_bytes(const LinearForward& op, int thread_count, const LinearOptions& options = {});
size_t workspace_bytes(const LinearBackwardInput& op, int thread_count, const LinearOptions& options = {});
size_t workspace_bytes(const LinearBackwardWeight& op, int thread_count, const LinearOptions& options = {});

// Of a weight (rows, cols) in the kernel's blocks. Where bf16 is computed in fp32, the packed weight is fp32
// (of values rounded to bf16).
size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout,
                    const LinearOptions& options = {});

}  // namespace sluice::gpu::host
