#include "gpu/cuda/cuda_device.h"

#include <algorithm>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <utility>

#include "gpu/cpu_stream.h"
#include "gpu/cuda/cuda_error.h"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/cuda/cuda_stream.h"
#include "gpu/memory_budget.h"

namespace sluice::gpu {
namespace {

using cuda::as_cuda;
using cuda::check;
using cuda::use_device;

constexpr size_t kLargePageBytes = size_t{2} << 20;
constexpr int kOldestMajor = 8;  // what the kernels are compiled for: compute capability 8.0 and newer

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(int ordinal, MemoryBudget& budget, size_t size_bytes)
      : ordinal_(ordinal), budget_(budget), size_bytes_(size_bytes) {
    budget_.reserve(size_bytes_);
    try {
      allocate();
    } catch (...) {
      budget_.give_back(size_bytes_);
      throw;
    }
  }
  ~CudaMemory() override {
    static_cast<void>(cudaSetDevice(ordinal_));
    static_cast<void>(cudaFree(allocation_));  // waits for the device: memory is given back between runs only
    budget_.give_back(size_bytes_);
  }
  std::byte* data() const override { return data_; }
  size_t size_bytes() const override { return size_bytes_; }

 private:
  // cudaMalloc promises 256 bytes; large blocks are aligned to 2 MiB in practice, and else get slack.
  void allocate() {
    use_device(ordinal_);
    allocate_exactly(std::max(size_bytes_, size_t{1}));
    if (size_bytes_ < kLargePageBytes || misalignment() == 0) return;
    static_cast<void>(cudaFree(std::exchange(allocation_, nullptr)));
    allocate_exactly(size_bytes_ + kLargePageBytes);
    data_ += (kLargePageBytes - misalignment()) % kLargePageBytes;
  }
  void allocate_exactly(size_t bytes) {
    const cudaError_t result = cudaMalloc(&allocation_, bytes);
    if (result == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // it is reported here and must not surface in a later call
      size_t free_bytes = 0, total_bytes = 0;
      check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
      throw Error(ErrorKind::resource, "device memory: asked for " + std::to_string(size_bytes_) +
                                           " bytes, about " + std::to_string(free_bytes) + " of the GPU's " +
                                           std::to_string(total_bytes) +
                                           " are free. Lower --device_memory or end other programs on it.");
    }
    check(result, "cudaMalloc");
    data_ = static_cast<std::byte*>(allocation_);
  }
  size_t misalignment() const { return reinterpret_cast<uintptr_t>(data_) % kLargePageBytes; }

  const int ordinal_;
  MemoryBudget& budget_;
  const size_t size_bytes_;
  void* allocation_ = nullptr;
  std::byte* data_ = nullptr;
};

class CudaRegistration final : public HostRegistration {
 public:
  CudaRegistration(int ordinal, void* data, size_t size_bytes) : data_(data) {
    use_device(ordinal);
    const cudaError_t result = cudaHostRegister(data, size_bytes, cudaHostRegisterPortable);
    if (result == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorKind::resource, "cannot page-lock " + std::to_string(size_bytes) +
                                         " bytes of host memory: " + cudaGetErrorString(result) +
                                         ". Lower --host_memory or raise the limit (ulimit -l).");
  }
  ~CudaRegistration() override { static_cast<void>(cudaHostUnregister(data_)); }
  CudaRegistration(const CudaRegistration&) = delete;
  CudaRegistration& operator=(const CudaRegistration&) = delete;

 private:
  void* data_;
};

class NoRegistration final : public HostRegistration {};

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, const CudaDeviceOptions& options, const cudaDeviceProp& properties)
      : ordinal_(ordinal), budget_(options.memory_limit_bytes) {
    traits_.name = properties.name;
    traits_.kernel_table_id = ops_.kernel_table_id();
    traits_.preferred_compute_dtype = ops_.preferred_compute_dtype();
  }

  const DeviceTraits& traits() const override { return traits_; }

  std::unique_ptr<DeviceMemory> allocate(size_t size_bytes) override {
    return std::make_unique<CudaMemory>(ordinal_, budget_, size_bytes);
  }

  std::unique_ptr<HostRegistration> register_host_memory(void* data, size_t size_bytes) override {
    if (size_bytes == 0) return std::make_unique<NoRegistration>();
    return std::make_unique<CudaRegistration>(ordinal_, data, size_bytes);
  }

  std::unique_ptr<Stream> make_stream(StreamKind kind, std::string name) override {
    if (kind == StreamKind::cpu) return std::make_unique<CpuStream>(kind, std::move(name));
    return std::make_unique<cuda::CudaStream>(ordinal_, kind, std::move(name));
  }

  void copy_to_device(Stream& stream, std::byte* device, const void* host, size_t size_bytes) override {
    copy(stream, device, host, size_bytes, cudaMemcpyHostToDevice);
  }
  void copy_to_host(Stream& stream, void* host, const std::byte* device, size_t size_bytes) override {
    copy(stream, host, device, size_bytes, cudaMemcpyDeviceToHost);
  }

  Ops& ops() override { return ops_; }

 private:
  void copy(Stream& stream, void* to, const void* from, size_t size_bytes, cudaMemcpyKind kind) const {
    const cuda::CudaStream& cuda_stream = as_cuda(stream);
    if (size_bytes == 0) return;
    use_device(ordinal_);
    check(cudaMemcpyAsync(to, from, size_bytes, kind, cuda_stream.handle()), "cudaMemcpyAsync");
  }

  const int ordinal_;
  MemoryBudget budget_;
  cuda::CudaOps ops_;
  DeviceTraits traits_;
};

}  // namespace

std::string cuda_unavailable_reason() {
  int count = 0;  // left untouched where there is no driver
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(result);
  return count == 0 ? "no CUDA device: the driver lists none" : "";
}

std::unique_ptr<Device> make_cuda_device(int ordinal, const CudaDeviceOptions& options) {
  const std::string reason = cuda_unavailable_reason();
  if (!reason.empty()) throw Error(ErrorKind::resource, reason);
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorKind::resource, "no CUDA device: number " + std::to_string(ordinal) + " of " +
                                         std::to_string(count) + ", counted from 0");
  }
  cudaDeviceProp properties = {};
  check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  if (properties.major < kOldestMajor) {
    throw Error(ErrorKind::resource, std::string("no CUDA device: ") + properties.name +
                                         " has compute capability " + std::to_string(properties.major) + "." +
                                         std::to_string(properties.minor) + ", 8.0 is the oldest supported");
  }
  return std::make_unique<CudaDevice>(ordinal, options, properties);
}

}  // namespace sluice::gpu
