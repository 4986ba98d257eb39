#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gpu/device.h"
#include "gpu/op_cost.h"

namespace sluice::gpu {

// A GPU as numbers. Rates are peaks by the maker's data, without sparsity: what kernels can come near to, and
// what the rest of a step must keep up with. PCIe rates are what copies from page-locked memory reach.
struct GpuModel {
  std::string name;
  double bf16_flops_per_second = 0;  // matrix products, sums in fp32
  double f32_flops_per_second = 0;   // everything else
  double memory_bytes_per_second = 0;
  size_t memory_bytes = 0;  // 0: no limit
  double copy_in_bytes_per_second = 0;
  double copy_out_bytes_per_second = 0;
  double launch_seconds = 0;  // of each op and each copy
};

std::vector<std::string> gpu_model_names();

// A model by name ("RTX 4090"; case, blanks, "NVIDIA" and "GeForce" do not matter), or by numbers as
// "flops=80e12,memory=1e12,pcie=25e9": bf16 FLOP/s, bytes per second of memory and of PCIe (each way). More
// keys: f32_flops (else half of flops), pcie_in, pcie_out (else pcie), launch (seconds, else 3e-6), capacity
// (bytes of memory, else no limit). Throws Error(usage): for an unknown name with the nearest and all of
// them, for numbers with the key at fault.
GpuModel gpu_model(std::string_view text);

// What a planner may know of it. The kernel table is the caller's to name.
DeviceTraits traits_of(const GpuModel& model);

// max(flops / rate, bytes / memory bandwidth) + launch.
double op_seconds(const GpuModel& model, const OpCost& cost);

}  // namespace sluice::gpu
