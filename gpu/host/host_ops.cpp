#include "gpu/host/host_ops.h"

#include "gpu/host/attention.h"
#include "gpu/host/kernel_table.h"
#include "gpu/host/linear.h"
#include "gpu/host/row_ops.h"
#include "gpu/ops/validate.h"

namespace sluice::gpu {
namespace {

class HostOps final : public Ops {
 public:
  HostOps(Executor& executor, Enqueue enqueue) : executor_(executor), enqueue_(std::move(enqueue)) {}

  void submit(Stream& stream, Op op, Workspace workspace) override {
    validate(op);
    Task task;
    task.name = name(op);
    task.accesses = accesses(op);
    if (workspace.size_bytes > 0) task.accesses.push_back(writes(workspace.data, workspace.size_bytes));
    task.body = [this, op = std::move(op), workspace] {
      std::visit([&](const auto& known) { host::run(known, executor_, workspace); }, op);
    };
    enqueue_(stream, std::move(task));
  }

  size_t workspace_bytes(const Op& op) const override {
    return std::visit(
        [&](const auto& known) { return host::workspace_bytes(known, executor_.thread_count()); }, op);
  }

  size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout) const override {
    return host::packed_bytes(rows, cols, dtype, layout);
  }

  std::string kernel_table_id() const override { return host::kernel_table_id(); }
  DType preferred_compute_dtype() const override { return host::preferred_compute_dtype(); }

 private:
  Executor& executor_;
  Enqueue enqueue_;
};

}  // namespace

std::unique_ptr<Ops> make_host_ops(Executor& executor, Enqueue enqueue) {
  return std::make_unique<HostOps>(executor, std::move(enqueue));
}

}  // namespace sluice::gpu
