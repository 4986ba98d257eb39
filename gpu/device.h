#pragma once

#include <memory>
#include <string>

#include "gpu/ops/ops.h"
#include "gpu/stream.h"

namespace sluice::gpu {

// What a planner may know of a device: a value, asked of a device once or read from a table. Rates are 0
// where unknown.
struct DeviceTraits {
  std::string name;             // "host", "NVIDIA H200"
  std::string kernel_table_id;  // which kernels serve which shapes; part of a run's identity
  DType preferred_compute_dtype = DType::f32;
  size_t alignment_bytes = 256;     // of every buffer handed to ops
  bool shares_host_memory = false;  // the device tier is RAM too
  double f32_flops_per_second = 0;
  double bf16_flops_per_second = 0;
  double copy_in_bytes_per_second = 0;
  double copy_out_bytes_per_second = 0;
};

// Memory of the device; given back by the destructor. Aligned to 2 MiB where it is that large, else to the
// traits' alignment; contents undefined.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t size_bytes() const = 0;
};

// Keeps a range of host memory page-locked for copies; undone by the destructor.
class HostRegistration {
 public:
  virtual ~HostRegistration() = default;
};

// Memory, streams, copies and ops of one accelerator, or of the CPU that stands in for it. Thread-safe,
// except that one stream is submitted to by one thread at a time. Streams and memory must be gone before the
// device.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceTraits& traits() const = 0;
  // Throws Error(resource) with what was asked and what is free.
  virtual std::unique_ptr<DeviceMemory> allocate(size_t size_bytes) = 0;
  virtual std::unique_ptr<HostRegistration> register_host_memory(void* data, size_t size_bytes) = 0;
  virtual std::unique_ptr<Stream> make_stream(StreamKind kind, std::string name) = 0;
  // In stream order, on a compute or copy stream. Host memory must stay valid until an event after it is
  // done.
  virtual void copy_to_device(Stream& stream, std::byte* device, const void* host, size_t size_bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* host, const std::byte* device, size_t size_bytes) = 0;
  virtual Ops& ops() = 0;
};

}  // namespace sluice::gpu
