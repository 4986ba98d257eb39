#pragma once

#include "gpu/ops/ops.h"

// One plain loop per op, grouped in files as in gpu/ops. Only reference.cpp calls these.
namespace sluice::gpu::reference::kernels {

void run(const RmsNormForward& op);
void run(const RmsNormBackward& op);
void run(const LinearPack& op);
void run(const LinearForward& op);
void run(const LinearBackwardInput& op);
void run(const LinearBackwardWeight& op);
void run(const AttentionForward& op);
void run(const AttentionBackward& op);
void run(const Rope& op);
void run(const GatherRows& op);
void run(const ScatterRows& op);
void run(const EmbeddingBackward& op);
void run(const SwigluForward& op);
void run(const SwigluBackward& op);
void run(const LogSumExpUpdate& op);
void run(const TokenLoss& op);
void run(const CrossEntropyBackward& op);
void run(const ArgMaxUpdate& op);
void run(const Cast& op);
void run(const Add& op);
void run(const Scale& op);
void run(const Fill& op);
void run(const JoinSplit& op);

}  // namespace sluice::gpu::reference::kernels
