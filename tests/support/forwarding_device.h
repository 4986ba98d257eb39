#pragma once

#include <memory>
#include <string>
#include <utility>

#include "gpu/device.h"

namespace sluice::test {

// Ops that pass everything on: what tests derive from to watch or change what is submitted.
class ForwardingOps : public gpu::Ops {
 public:
  explicit ForwardingOps(gpu::Ops& inner) : inner_(inner) {}
  void submit(gpu::Stream& stream, gpu::Op op, gpu::Workspace workspace) override {
    inner_.submit(stream, std::move(op), workspace);
  }
  size_t workspace_bytes(const gpu::Op& op) const override { return inner_.workspace_bytes(op); }
  size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, gpu::WeightLayout layout) const override {
    return inner_.packed_bytes(rows, cols, dtype, layout);
  }
  std::string kernel_table_id() const override { return inner_.kernel_table_id(); }
  DType preferred_compute_dtype() const override { return inner_.preferred_compute_dtype(); }

 protected:
  gpu::Ops& inner_;
};

// A device that passes everything on: what tests derive from to watch a device, to change its traits, or to
// let it fail.
class ForwardingDevice : public gpu::Device {
 public:
  explicit ForwardingDevice(gpu::Device& inner) : traits_(inner.traits()), inner_(inner) {}

  const gpu::DeviceTraits& traits() const override { return traits_; }
  std::unique_ptr<gpu::DeviceMemory> allocate(size_t size_bytes) override {
    return inner_.allocate(size_bytes);
  }
  std::unique_ptr<gpu::HostRegistration> register_host_memory(void* data, size_t size_bytes) override {
    return inner_.register_host_memory(data, size_bytes);
  }
  std::unique_ptr<gpu::Stream> make_stream(gpu::StreamKind kind, std::string name) override {
    return inner_.make_stream(kind, std::move(name));
  }
  void copy_to_device(gpu::Stream& stream, std::byte* device, const void* host, size_t size_bytes) override {
    inner_.copy_to_device(stream, device, host, size_bytes);
  }
  void copy_to_host(gpu::Stream& stream, void* host, const std::byte* device, size_t size_bytes) override {
    inner_.copy_to_host(stream, host, device, size_bytes);
  }
  gpu::Ops& ops() override { return inner_.ops(); }

 protected:
  gpu::DeviceTraits traits_;
  gpu::Device& inner_;
};

}  // namespace sluice::test
