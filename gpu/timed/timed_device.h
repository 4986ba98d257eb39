#pragma once

#include <memory>

#include "gpu/device.h"
#include "gpu/timed/gpu_models.h"
#include "gpu/timed/timed_stream.h"

namespace sluice::gpu {

// Whether the ops of the inner device run as well.
enum class Numerics { on, off };

struct TimedDeviceOptions {
  GpuModel model;
  Numerics numerics = Numerics::off;
  size_t memory_limit_bytes = 0;  // of the device tier; 0: the model's memory
  Clock* clock = nullptr;         // outlives the device; null: the machine's steady clock
  Trace* trace = nullptr;         // of compute and copies, by the model; outlives the device. May be null
};

// A device whose ops and copies take the time that a modelled GPU would need, without using the CPU for it:
// so that scheduler, disk and optimizer can be measured under GPU-like compute on any machine. Ops of all
// streams share one compute engine, copies one engine a direction; an op takes op_seconds(model, cost(op)), a
// copy its bytes over the link's rate and a launch. Events are done at the modelled time. cpu streams are
// those of the inner device, in real time. Thread-safe as the inner device is.
//
// Numerics on: everything is submitted to the inner device as well. Results are its results, and an event is
// done at the later of both times.
//
// Numerics off: nothing is computed, and the device's memory does not exist: it takes no RAM (a model of 80
// GB fits any machine), whoever touches it on the host crashes, and it reads as zeros. So copies to the
// device move nothing, and copies to the host write zeros over every byte asked for: losses and gradients are
// 0, never what lay in a host buffer before, which might be NaN; an update under it is one with gradient 0.
// Writing these zeros is all that the CPU does for it. The sizes of workspaces and packed weights are the
// inner device's.
class TimedDevice : public Device {
 public:
  // How long the engine has been taken since the beginning, by the model.
  virtual double busy_seconds(GpuEngine engine) const = 0;
  // The most of its memory that was handed out at a time.
  virtual size_t peak_memory_bytes() const = 0;
};

// `inner` outlives the device.
std::unique_ptr<TimedDevice> make_timed_device(Device& inner, const TimedDeviceOptions& options);

// When an event of a compute or copy stream of a timed device was reached by the model, on the device's
// clock. The event must be done.
int64_t modelled_time_ns(const Event& event);

}  // namespace sluice::gpu
