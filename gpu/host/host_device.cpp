#include "gpu/host/host_device.h"

#include <cstring>
#include <utility>

#include "gpu/cpu_stream.h"
#include "gpu/host/arena.h"

namespace sluice::gpu {
namespace {

class NoRegistration final : public HostRegistration {};

// Task into the thread of a stream that this device made; the check finds streams of other devices.
CpuStream& own(Stream& stream) {
  auto* cpu_stream = dynamic_cast<CpuStream*>(&stream);
  SLUICE_CHECK(cpu_stream != nullptr, "a stream of another device");
  return *cpu_stream;
}

void enqueue_op(Stream& stream, Task task) {
  SLUICE_CHECK(stream.kind() == StreamKind::compute, "ops are for compute streams");
  own(stream).enqueue(std::move(task));
}

class AsyncHostDevice final : public HostDevice {
 public:
  explicit AsyncHostDevice(const HostDeviceOptions& options)
      : checker_(options.check_hazards
                     ? std::make_shared<HazardChecker>(options.on_violation, options.host_order)
                     : nullptr),
        stepper_(options.step_seed ? std::make_shared<Stepper>(*options.step_seed) : nullptr),
        gate_(options.delay_seed ? make_delays(*options.delay_seed, stepper_) : stepper_),
        trace_(options.trace),
        arena_(options.memory_limit_bytes, checker_),
        ops_(options.make_ops(options.executor, enqueue_op)) {
    SLUICE_CHECK(ops_ != nullptr);
    traits_.name = "host";
    traits_.kernel_table_id = ops_->kernel_table_id();
    traits_.preferred_compute_dtype = ops_->preferred_compute_dtype();
    traits_.shares_host_memory = true;
  }

  const DeviceTraits& traits() const override { return traits_; }

  std::unique_ptr<DeviceMemory> allocate(size_t size_bytes) override { return arena_.allocate(size_bytes); }

  std::unique_ptr<HostRegistration> register_host_memory(void* data, size_t size_bytes) override {
    SLUICE_CHECK(data != nullptr || size_bytes == 0);
    return std::make_unique<NoRegistration>();
  }

  std::unique_ptr<Stream> make_stream(StreamKind kind, std::string name) override {
    CpuStreamOptions options;
    options.observer = checker_;
    options.gate = gate_;
    options.trace = trace_;
    return std::make_unique<CpuStream>(kind, std::move(name), std::move(options));
  }

  void copy_to_device(Stream& stream, std::byte* device, const void* host, size_t size_bytes) override {
    SLUICE_CHECK(size_bytes == 0 || arena_.contains(device, size_bytes), "not this device's memory");
    enqueue_copy(stream, "copy_to_device", device, host, size_bytes);
  }

  void copy_to_host(Stream& stream, void* host, const std::byte* device, size_t size_bytes) override {
    SLUICE_CHECK(size_bytes == 0 || arena_.contains(device, size_bytes), "not this device's memory");
    enqueue_copy(stream, "copy_to_host", host, device, size_bytes);
  }

  Ops& ops() override { return *ops_; }
  const HazardChecker* hazard_checker() const override { return checker_.get(); }
  Stepper* stepper() override { return stepper_.get(); }
  size_t used_bytes() const override { return arena_.used_bytes(); }

 private:
  static void enqueue_copy(Stream& stream, std::string_view name, void* to, const void* from,
                           size_t size_bytes) {
    SLUICE_CHECK(stream.kind() != StreamKind::cpu, "copies are for compute and copy streams");
    if (size_bytes == 0) return;
    own(stream).enqueue({.name = name,
                         .accesses = {reads(from, size_bytes), writes(to, size_bytes)},
                         .body = [=] { std::memcpy(to, from, size_bytes); }});
  }

  const std::shared_ptr<HazardChecker> checker_;
  const std::shared_ptr<Stepper> stepper_;
  const std::shared_ptr<StreamGate> gate_;
  Trace* const trace_;
  Arena arena_;
  const std::unique_ptr<Ops> ops_;
  DeviceTraits traits_;
};

}  // namespace

std::unique_ptr<HostDevice> make_host_device(const HostDeviceOptions& options) {
  SLUICE_CHECK(options.make_ops != nullptr);
  return std::make_unique<AsyncHostDevice>(options);
}

}  // namespace sluice::gpu
