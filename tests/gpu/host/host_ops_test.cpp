#include "gpu/host/host_ops.h"

#include "apps/common/pool.h"
#include "gpu/host/linear.h"
#include "tests/contract/attention_ops_contract.h"
#include "tests/contract/linear_ops_contract.h"
#include "tests/contract/loss_ops_contract.h"
#include "tests/contract/norm_ops_contract.h"
#include "tests/contract/row_ops_contract.h"

namespace sluice::test {
namespace {

// A stream that only says that it is one: its tasks run at once.
class Immediate final : public gpu::Stream {
 public:
  Immediate() : Stream(gpu::StreamKind::compute, "immediate") {}
  gpu::Event record() override { throw Error(ErrorKind::runtime, "nothing to record"); }
  void wait(const gpu::Event&) override {}
  void run(gpu::Task task) override { task.body(); }
};

// The ops of the host device on a pool of its own.
struct HostOps {
  explicit HostOps(int thread_count) : pool(make_pool(thread_count)) {
    ops = gpu::make_host_ops(*pool, [](gpu::Stream& on, gpu::Task task) { on.run(std::move(task)); });
  }
  std::unique_ptr<Executor> pool;
  std::unique_ptr<gpu::Ops> ops;
  Immediate stream;
};

OpsBackend::Run host_run(int thread_count) {
  auto host = std::make_shared<HostOps>(thread_count);
  return [host](const gpu::Op& op) {
    const size_t size = host->ops->workspace_bytes(op);
    const Matrix workspace(DType::u8, 1, static_cast<int64_t>(size));
    host->ops->submit(host->stream, op, {workspace.view().data, size});
  };
}

OpsBackend host_backend() {
  return {"host",
          {host_run(1), host_run(2), host_run(3)},
          [](int64_t rows, int64_t cols, DType dtype, gpu::WeightLayout layout) {
            return gpu::host::packed_bytes(rows, cols, dtype, layout);
          }};
}

INSTANTIATE_TEST_SUITE_P(Host, NormOpsContract, testing::Values(host_backend()), backend_name);
INSTANTIATE_TEST_SUITE_P(Host, RowOpsContract, testing::Values(host_backend()), backend_name);
INSTANTIATE_TEST_SUITE_P(Host, LossOpsContract, testing::Values(host_backend()), backend_name);
INSTANTIATE_TEST_SUITE_P(Host, LinearOpsContract, testing::Values(host_backend()), backend_name);
INSTANTIATE_TEST_SUITE_P(Host, AttentionOpsContract, testing::Values(host_backend()), backend_name);

}  // namespace
}  // namespace sluice::test
