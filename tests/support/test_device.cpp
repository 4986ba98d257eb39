#include "tests/support/test_device.h"

#include <gtest/gtest.h>
#include <thread>

#include "apps/common/pool.h"
#include "gpu/host/host_device.h"
#include "gpu/host/host_ops.h"
#include "gpu/reference/reference_ops.h"
#include "tests/support/forwarding_device.h"

namespace sluice::test {
namespace {

class DeviceWithTraits final : public ForwardingDevice {
 public:
  DeviceWithTraits(gpu::Device& inner, bool shares_host_memory) : ForwardingDevice(inner) {
    traits_.shares_host_memory = shares_host_memory;
  }
};

}  // namespace

struct TestDevice::Impl {
  std::unique_ptr<gpu::HostDevice> device;
  std::unique_ptr<gpu::Device> seen;
};

TestDevice::TestDevice(const TestDeviceOptions& options)
    : pool_(make_pool(options.thread_count)), impl_(std::make_unique<Impl>()) {
  gpu::OpsFactory make_ops = gpu::make_host_ops;
  if (options.reference_ops) {
    make_ops = [](Executor&, gpu::Enqueue enqueue) {
      return std::make_unique<gpu::ReferenceOps>(std::move(enqueue));
    };
  }
  impl_->device = gpu::make_host_device({.executor = *pool_,
                                         .make_ops = std::move(make_ops),
                                         .delay_seed = options.delay_seed,
                                         .check_hazards = true});
  impl_->seen = std::make_unique<DeviceWithTraits>(*impl_->device, options.shares_host_memory);
}

TestDevice::~TestDevice() {
  for (const std::string& hazard : take_hazards()) ADD_FAILURE() << hazard;
}

gpu::Device& TestDevice::device() {
  return *impl_->seen;
}

size_t TestDevice::used_bytes() const {
  return impl_->device->used_bytes();
}

std::vector<std::string> TestDevice::take_hazards() {
  std::vector<std::string> texts;
  const std::vector<gpu::Violation> violations = impl_->device->hazard_checker()->violations();
  for (size_t i = taken_hazard_count_; i < violations.size(); ++i) texts.push_back(violations[i].text);
  taken_hazard_count_ = violations.size();
  return texts;
}

void wait_unseen(const gpu::Event& event) {
  std::thread([&] { event.wait(); }).join();  // counts for what that thread submits: nothing
}

}  // namespace sluice::test
