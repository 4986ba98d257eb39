#pragma once

#include "engine/base/executor.h"
#include "gpu/ops/ops.h"

// The ops that are bound by memory, on the host: one pass over their operands, vectorised with Highway for
// the processor at hand, arithmetic in fp32. Each runs now, on the caller's thread and the executor's, and
// returns when done; thread-safe where operands do not overlap. Operands passed gpu::validate.
//
// Work is cut into pieces whose size depends on shapes alone, and reductions along a row have 32 fixed lanes
// (element i goes to lane i % 32). So bits do not depend on threads or alignment, nor on the width of vectors
// between instruction sets that have a fused multiply-add (AVX2, AVX-512, NEON); SSE4 has none and differs.
namespace sluice::gpu::host {

void run(const RmsNormForward& op, Executor& executor, Workspace workspace);
void run(const RmsNormBackward& op, Executor& executor, Workspace workspace);
void run(const Rope& op, Executor& executor, Workspace workspace);
void run(const GatherRows& op, Executor& executor, Workspace workspace);
void run(const ScatterRows& op, Executor& executor, Workspace workspace);
void run(const EmbeddingBackward& op, Executor& executor, Workspace workspace);
void run(const SwigluForward& op, Executor& executor, Workspace workspace);
void run(const SwigluBackward& op, Executor& executor, Workspace workspace);
void run(const LogSumExpUpdate& op, Executor& executor, Workspace workspace);
void run(const TokenLoss& op, Executor& executor, Workspace workspace);
void run(const CrossEntropyBackward& op, Executor& executor, Workspace workspace);
void run(const ArgMaxUpdate& op, Executor& executor, Workspace workspace);
void run(const Cast& op, Executor& executor, Workspace workspace);
void run(const Add& op, Executor& executor, Workspace workspace);
void run(const Scale& op, Executor& executor, Workspace workspace);
void run(const Fill& op, Executor& executor, Workspace workspace);
void run(const JoinSplit& op, Executor& executor, Workspace workspace);

// The sums over ranges of 64 rows, before they are added up. By shapes alone.
size_t workspace_bytes(const RmsNormBackward& op, int thread_count);
// The other ops need none, those elsewhere (linear, attention) have overloads of their own.
template <class AnyOp>
size_t workspace_bytes(const AnyOp&, int) {
  return 0;
}

}  // namespace sluice::gpu::host
