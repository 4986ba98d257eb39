#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/base/executor.h"
#include "engine/base/trace.h"
#include "gpu/device.h"
#include "gpu/host/hazard_checker.h"
#include "gpu/host/schedule.h"

namespace sluice::gpu {

// make_host_ops (gpu/host/host_ops.h), make_reference_ops, ... The ops put their kernels into streams by the
// given function and may split loops over the executor.
using OpsFactory = std::function<std::unique_ptr<Ops>(Executor&, Enqueue)>;

struct HostDeviceOptions {
  Executor& executor;  // outlives the device
  OpsFactory make_ops;
  size_t memory_limit_bytes = 0;            // of the device tier; 0: none
  std::optional<uint64_t> delay_seed = {};  // hold every task back a little (make_delays)
  std::optional<uint64_t> step_seed = {};   // one task at a time (Stepper)
  bool check_hazards = false;
  OnViolation on_violation = OnViolation::collect;
  HostOrder host_order = HostOrder::per_thread;
  Trace* trace = nullptr;  // of its streams; outlives the device. May be null
};

// The CPU as a device of its own: memory apart from the host's, copies that copy, and a thread a stream, so
// that a program that is right here is right on an accelerator, and one that is wrong can be shown to be.
class HostDevice : public Device {
 public:
  // Null where hazards are not checked.
  virtual const HazardChecker* hazard_checker() const = 0;
  // Null where the device is not stepped.
  virtual Stepper* stepper() = 0;
  virtual size_t used_bytes() const = 0;
};

std::unique_ptr<HostDevice> make_host_device(const HostDeviceOptions& options);

}  // namespace sluice::gpu
