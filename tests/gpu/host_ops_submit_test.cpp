#include <gtest/gtest.h>
#include <vector>

#include "apps/common/pool.h"
#include "gpu/host/host_device.h"
#include "gpu/host/host_ops.h"
#include "gpu/host/kernel_table.h"

namespace sluice::gpu {
namespace {

// y = x W^T through the whole seam: device memory, packed weight, a stream, an event, with hazards checked.
TEST(HostOps, RunInStreamOrderOnTheHostDevice) {
  const std::unique_ptr<Executor> pool = make_pool(2);
  const std::unique_ptr<HostDevice> device =
      make_host_device({.executor = *pool, .make_ops = make_host_ops, .check_hazards = true});
  Ops& ops = device->ops();
  constexpr int64_t kRows = 5, kIn = 7, kOut = 3;
  const auto memory = [&](size_t size) { return device->allocate(size); };
  const std::unique_ptr<DeviceMemory> x = memory(kRows * kIn * 4), w = memory(kOut * kIn * 4),
                                      y = memory(kRows * kOut * 4);
  LinearPack pack;
  pack.sources = {{View(w->data(), DType::f32, kOut, kIn), {}}};
  pack.packed = {nullptr,    ops.packed_bytes(kOut, kIn, DType::f32, WeightLayout::forward),
                 DType::f32, kOut,
                 kIn,        WeightLayout::forward};
  const std::unique_ptr<DeviceMemory> packed = memory(pack.packed.size_bytes);
  pack.packed.data = packed->data();
  const LinearForward forward{
      View(x->data(), DType::f32, kRows, kIn), pack.packed, {}, View(y->data(), DType::f32, kRows, kOut)};
  const size_t size = std::max(ops.workspace_bytes(pack), ops.workspace_bytes(forward));
  const std::unique_ptr<DeviceMemory> scratch = memory(size + 1);

  std::vector<float> host_x(kRows * kIn), host_w(kOut * kIn), host_y(kRows * kOut);
  for (size_t i = 0; i < host_x.size(); ++i) host_x[i] = static_cast<float>(i % 5) - 2;
  for (size_t i = 0; i < host_w.size(); ++i) host_w[i] = static_cast<float>(i % 3) - 1;
  const std::unique_ptr<Stream> copies = device->make_stream(StreamKind::copy_in, "copy_in");
  const std::unique_ptr<Stream> compute = device->make_stream(StreamKind::compute, "compute");
  const std::unique_ptr<Stream> back = device->make_stream(StreamKind::copy_out, "copy_out");
  device->copy_to_device(*copies, x->data(), host_x.data(), host_x.size() * 4);
  device->copy_to_device(*copies, w->data(), host_w.data(), host_w.size() * 4);
  compute->wait(copies->record());
  ops.submit(*compute, pack, {scratch->data(), size});
  ops.submit(*compute, forward, {scratch->data(), size});
  back->wait(compute->record());
  device->copy_to_host(*back, host_y.data(), y->data(), host_y.size() * 4);
  back->record().wait();

  for (size_t r = 0; r < kRows; ++r) {
    for (size_t n = 0; n < kOut; ++n) {
      float sum = 0;  // small integers: exact in any order
      for (size_t k = 0; k < kIn; ++k) sum += host_x[r * kIn + k] * host_w[n * kIn + k];
      EXPECT_EQ(host_y[r * kOut + n], sum) << r << ", " << n;
    }
  }
  EXPECT_TRUE(device->hazard_checker()->violations().empty());
}

TEST(HostOps, NamesItsKernelTable) {
  SerialExecutor serial;
  const std::unique_ptr<Ops> ops = make_host_ops(serial, [](Stream&, const Task&) {});
  EXPECT_EQ(ops->kernel_table_id(), host::kernel_table().id);
  EXPECT_EQ(ops->preferred_compute_dtype(), host::kernel_table().preferred_compute_dtype);
}

// A planner asks before there is memory: null pointers, no segments.
TEST(HostOps, WorkspaceFollowsFromShapesAlone) {
  const std::unique_ptr<Executor> pool = make_pool(3);
  const std::unique_ptr<Ops> ops = make_host_ops(*pool, [](Stream&, const Task&) {});
  const auto view = [](int64_t rows, int64_t cols, DType dtype = DType::bf16) {
    return View(nullptr, dtype, rows, cols);
  };
  const AttentionShape shape{9, 3, 64, 0.125f};
  AttentionForward forward{shape,          nullptr,        view(512, 576),          view(512, 192),
                           view(512, 192), view(512, 576), view(512, 9, DType::f32)};
  const size_t short_cache = ops->workspace_bytes(forward);
  EXPECT_GT(short_cache, size_t{0});
  forward.k = forward.v = view(1024, 192);
  EXPECT_GT(ops->workspace_bytes(forward), short_cache);
  EXPECT_GT(ops->workspace_bytes(
                LinearBackwardWeight{view(1024, 576), view(1024, 1536), view(576, 1536, DType::f32), false}),
            size_t{1024 * 1536});
}

}  // namespace
}  // namespace sluice::gpu
