#pragma once

#include <cstddef>

#include "engine/base/executor.h"
#include "gpu/host/panel.h"
#include "gpu/ops/ops.h"

// Causal attention on the CPU (semantics: gpu/ops/attention.h). Queries go in blocks of 32, whose whole row
// of visible scores lies in a worker's scratch (32 x key_count floats: the L2 cache for documents of up to
// some thousand tokens); K and V are packed in panels. Each row of the output is computed alike whatever
// block it is in, so one query against a cache gives the bits of the whole document. Bits do not depend on
// threads, strides or alignment. Thread-safe; the workspace belongs to the call.
namespace sluice::gpu::host {

struct AttentionOptions {
  const PanelKernel* kernel = nullptr;  // null: the table's for the dtype
};

void run(const AttentionForward& op, Executor& executor, Workspace workspace,
         const AttentionOptions& options = {});
void run(const AttentionBackward& op, Executor& executor, Workspace workspace,
         const AttentionOptions& options = {});

// By shapes alone: room for one segment as long as k has rows.
size_t workspace_bytes(const AttentionForward& op, int thread_count, const AttentionOptions& options = {});
size_t workspace_bytes(const AttentionBackward& op, int thread_count, const AttentionOptions& options = {});

}  // namespace sluice::gpu::host
