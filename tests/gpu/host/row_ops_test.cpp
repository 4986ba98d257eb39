#include "gpu/host/row_ops.h"

#include "apps/common/pool.h"
#include "hwy/targets.h"
#include "tests/contract/loss_ops_contract.h"
#include "tests/contract/norm_ops_contract.h"
#include "tests/contract/row_ops_contract.h"

namespace sluice::test {
namespace {

// A run of row ops on `thread_count` threads, with the instruction set `target` (0: the best here).
OpsBackend::Run host_run(int thread_count, int64_t target) {
  std::shared_ptr<Executor> pool = make_pool(thread_count);
  return [pool, target](const gpu::Op& any) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { gpu::host::run(op, *pool, gpu::Workspace()); }) {
            const size_t size = gpu::host::workspace_bytes(op, pool->thread_count());
            const Matrix workspace(DType::u8, 1, static_cast<int64_t>(size));
            gpu::host::run(op, *pool, gpu::Workspace{workspace.view().data, size});
          } else {
            FAIL() << "not a row op";
          }
        },
        any);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  };
}

std::vector<OpsBackend> host_backends() {
  std::vector<OpsBackend> backends{{"host", {host_run(1, 0), host_run(2, 0), host_run(3, 0)}, nullptr}};
  for (int64_t target : hwy::SupportedAndGeneratedTargets())
    backends.push_back({hwy::TargetName(target), {host_run(1, target)}, nullptr});
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Host, NormOpsContract, testing::ValuesIn(host_backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Host, RowOpsContract, testing::ValuesIn(host_backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Host, LossOpsContract, testing::ValuesIn(host_backends()), backend_name);

}  // namespace
}  // namespace sluice::test
