#include "gpu/timed/timed_device.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <utility>

#include "engine/base/math.h"
#include "gpu/memory_budget.h"
#include "gpu/ops/validate.h"

namespace sluice::gpu {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

int64_t to_ns(double seconds) {
  return std::llround(seconds * 1e9);
}

TimedStream& own(Stream& stream) {
  auto* timed = dynamic_cast<TimedStream*>(&stream);
  SLUICE_CHECK(timed != nullptr, "a stream of another device, or a cpu stream");
  return *timed;
}

// Holds bytes of a budget.
class Share {
 public:
  Share(MemoryBudget& budget, size_t size_bytes) : budget_(budget), size_bytes_(size_bytes) {
    budget_.reserve(size_bytes_);
  }
  ~Share() { budget_.give_back(size_bytes_); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  MemoryBudget& budget_;
  const size_t size_bytes_;
};

class SharedMemory final : public DeviceMemory {
 public:
  SharedMemory(MemoryBudget& budget, Device& inner, size_t size_bytes)
      : share_(budget, size_bytes), memory_(inner.allocate(size_bytes)) {}
  std::byte* data() const override { return memory_->data(); }
  size_t size_bytes() const override { return memory_->size_bytes(); }

 private:
  const Share share_;
  const std::unique_ptr<DeviceMemory> memory_;
};

// Addresses that nothing stands behind.
class AddressesOnly final : public DeviceMemory {
 public:
  AddressesOnly(MemoryBudget& budget, size_t size_bytes)
      : share_(budget, size_bytes), size_bytes_(size_bytes), mapped_bytes_(size_bytes + 2 * kHugePageBytes) {
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) {
      throw Error(ErrorKind::resource, "device memory: no " + std::to_string(size_bytes) +
                                           " bytes of addresses for a modelled GPU: " + errno_text(errno) +
                                           ". Lower --device_memory.");
    }
    const size_t misalignment = reinterpret_cast<uintptr_t>(mapping_) % kHugePageBytes;
    data_ = static_cast<std::byte*>(mapping_) + (kHugePageBytes - misalignment) % kHugePageBytes;
  }
  ~AddressesOnly() override { munmap(mapping_, mapped_bytes_); }
  std::byte* data() const override { return data_; }
  size_t size_bytes() const override { return size_bytes_; }

 private:
  const Share share_;
  const size_t size_bytes_;
  const size_t mapped_bytes_;
  void* mapping_ = nullptr;
  std::byte* data_ = nullptr;
};

class TimedOps final : public Ops {
 public:
  TimedOps(Ops& inner, const TimedDeviceOptions& options)
      : inner_(inner), model_(options.model), numerics_(options.numerics) {}

  void submit(Stream& stream, Op op, Workspace workspace) override {
    SLUICE_CHECK(stream.kind() == StreamKind::compute, "ops are for compute streams");
    validate(op);
    TimedStream& timed = own(stream);
    const int64_t duration_ns = to_ns(op_seconds(model_, cost(op)));
    const char* const op_name = name(op);
    if (timed.inner() != nullptr) inner_.submit(*timed.inner(), std::move(op), workspace);
    timed.occupy({op_name, GpuEngine::compute, duration_ns});
  }
  size_t workspace_bytes(const Op& op) const override { return inner_.workspace_bytes(op); }
  size_t packed_bytes(int64_t rows, int64_t cols, DType dtype, WeightLayout layout) const override {
    return inner_.packed_bytes(rows, cols, dtype, layout);
  }
  std::string kernel_table_id() const override {
    return numerics_ == Numerics::on ? inner_.kernel_table_id() : "no numerics";
  }
  DType preferred_compute_dtype() const override { return DType::bf16; }

 private:
  Ops& inner_;
  const GpuModel model_;
  const Numerics numerics_;
};

class TimedDeviceOver final : public TimedDevice {
 public:
  TimedDeviceOver(Device& inner, const TimedDeviceOptions& options)
      : inner_(inner),
        model_(options.model),
        numerics_(options.numerics),
        clock_(options.clock != nullptr ? *options.clock : steady_clock_),
        trace_(options.trace),
        budget_(options.memory_limit_bytes != 0 ? options.memory_limit_bytes : model_.memory_bytes),
        ops_(inner.ops(), options),
        traits_(traits_of(model_)) {
    traits_.kernel_table_id = ops_.kernel_table_id();
    traits_.alignment_bytes = std::max(traits_.alignment_bytes, inner.traits().alignment_bytes);
  }

  const DeviceTraits& traits() const override { return traits_; }

  std::unique_ptr<DeviceMemory> allocate(size_t size_bytes) override {
    if (numerics_ == Numerics::off) return std::make_unique<AddressesOnly>(budget_, size_bytes);
    return std::make_unique<SharedMemory>(budget_, inner_, size_bytes);
  }

  std::unique_ptr<HostRegistration> register_host_memory(void* data, size_t size_bytes) override {
    return inner_.register_host_memory(data, size_bytes);
  }

  std::unique_ptr<Stream> make_stream(StreamKind kind, std::string name) override {
    if (kind == StreamKind::cpu)
      return std::make_unique<CpuStreamBesideTimed>(inner_.make_stream(kind, std::move(name)));
    std::unique_ptr<Stream> inner;
    if (numerics_ == Numerics::on)
      inner = inner_.make_stream(kind, trace_ != nullptr ? name + ", numerics" : name);
    return std::make_unique<TimedStream>(kind, std::move(name), std::move(inner), clock_, engines_, trace_);
  }

  void copy_to_device(Stream& stream, std::byte* device, const void* host, size_t size_bytes) override {
    TimedStream& timed = own(stream);
    if (timed.inner() != nullptr) inner_.copy_to_device(*timed.inner(), device, host, size_bytes);
    if (size_bytes == 0) return;
    timed.occupy({"copy_to_device", GpuEngine::copy_in, copy_ns(size_bytes, model_.copy_in_bytes_per_second),
                  size_bytes});
  }

  void copy_to_host(Stream& stream, void* host, const std::byte* device, size_t size_bytes) override {
    TimedStream& timed = own(stream);
    std::function<void()> write_zeros;
    if (timed.inner() != nullptr) {
      inner_.copy_to_host(*timed.inner(), host, device, size_bytes);
    } else {
      write_zeros = [host, size_bytes] { std::memset(host, 0, size_bytes); };
    }
    if (size_bytes == 0) return;
    timed.occupy({"copy_to_host", GpuEngine::copy_out, copy_ns(size_bytes, model_.copy_out_bytes_per_second),
                  size_bytes},
                 std::move(write_zeros));
  }

  Ops& ops() override { return ops_; }

  double busy_seconds(GpuEngine engine) const override {
    return static_cast<double>(engines_.busy_ns(engine)) * 1e-9;
  }
  size_t peak_memory_bytes() const override { return budget_.peak_bytes(); }

 private:
  int64_t copy_ns(size_t size_bytes, double bytes_per_second) const {
    return to_ns(static_cast<double>(size_bytes) / bytes_per_second + model_.launch_seconds);
  }

  Device& inner_;
  const GpuModel model_;
  const Numerics numerics_;
  SteadyClock steady_clock_;
  Clock& clock_;
  Trace* const trace_;
  MemoryBudget budget_;
  EngineTimes engines_;
  TimedOps ops_;
  DeviceTraits traits_;
};

}  // namespace

std::unique_ptr<TimedDevice> make_timed_device(Device& inner, const TimedDeviceOptions& options) {
  const GpuModel& model = options.model;
  SLUICE_CHECK(model.bf16_flops_per_second > 0 && model.f32_flops_per_second > 0 &&
                   model.memory_bytes_per_second > 0 && model.copy_in_bytes_per_second > 0 &&
                   model.copy_out_bytes_per_second > 0,
               "a GPU model without a rate");
  return std::make_unique<TimedDeviceOver>(inner, options);
}

int64_t modelled_time_ns(const Event& event) {
  const auto* timed = dynamic_cast<const TimedEvent*>(event.state().get());
  SLUICE_CHECK(timed != nullptr, "an event that is not of a timed stream");
  return timed->time_ns();
}

}  // namespace sluice::gpu
