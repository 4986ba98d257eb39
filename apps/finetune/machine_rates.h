#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "apps/finetune/model/config.h"
#include "cpu_optim/state_format.h"
#include "engine/base/dtype.h"
#include "engine/base/executor.h"
#include "engine/schedule/predict.h"
#include "gpu/device.h"

namespace sluice::finetune {

// How fast this machine does what a training step is made of, with all threads of the pool. A value.
struct MachineRates {
  // By the op's name: FLOP/s of ops that are matmuls for the most part, bytes/s (gpu::cost) of all others.
  std::map<std::string, double> ops;
  double copy_bytes_per_second = 0;
  double optimizer_parameters_per_second = 0;
  double norm_bytes_per_second = 0;
  // Of one thread each; see LaneRates.
  double checksum_bytes_per_second = 0;
  double thread_bytes_per_second = 0;
  double input_tokens_per_second = 0;
};

// What the rates are of, beside the machine.
struct RatedWork {
  ModelConfig
      model;  // its layers where they are small, else those of a model whose matmuls are at their rate
  DType compute_dtype = DType::bf16;
  DType gradient_dtype = DType::bf16;  // as it waits
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;
};

// About a second of work on the device that is the CPU. The median of three runs of each: the shortest is not
// what a step of seconds gets.
MachineRates measure_machine(gpu::Device& device, Executor& executor, const RatedWork& work);

// What was measured before of such work on such a processor with as many threads and kernels, or else now;
// kept in machine.json beside drive_settings_path(). `report` hears of a measurement before it starts.
MachineRates machine_rates(gpu::Device& device, Executor& executor, const RatedWork& work,
                           const std::function<void()>& report);

// As above, of a known file and key; empty where it is not there or holds anything unlikely.
std::optional<MachineRates> load_machine_rates(const std::filesystem::path& file, const std::string& key);
// Keeps the other entries. Atomic.
void save_machine_rates(const std::filesystem::path& file, const std::string& key, const MachineRates& rates);

// Of an op on the CPU.
double op_seconds(const MachineRates& rates, const gpu::Op& op);

// Of the host beside whatever device; of copies only where the device is the CPU (Processors::one).
LaneRates host_lane_rates(const MachineRates& rates, int thread_count, Processors processors);

}  // namespace sluice::finetune
