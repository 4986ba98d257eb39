#include "gpu/reference/reference_ops.h"

#include "gpu/ops/validate.h"
#include "gpu/reference/reference.h"

namespace sluice::gpu {

void ReferenceOps::submit(Stream& stream, Op op, Workspace workspace) {
  validate(op);
  Task task;
  task.name = name(op);
  task.accesses = accesses(op);
  if (workspace.size_bytes > 0) task.accesses.push_back(writes(workspace.data, workspace.size_bytes));
  task.body = [op = std::move(op), workspace] { reference::run(op, workspace); };
  enqueue_(stream, std::move(task));
}

size_t ReferenceOps::workspace_bytes(const Op& op) const {
  return reference::workspace_bytes(op);
}

size_t ReferenceOps::packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout) const {
  return reference::packed_bytes(rows, cols, dtype, layout);
}

}  // namespace sluice::gpu
