#include "apps/finetune/machine_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>
#include <xxhash.h>

#include "apps/common/drive_settings.h"
#include "apps/finetune/dry_run.h"
#include "cpu_optim/adamw.h"
#include "cpu_optim/norm.h"
#include "engine/base/error.h"
#include "gpu/op_cost.h"
#include "io/aligned_buffer.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kRounds = 2;  // after one to warm up
constexpr uint64_t kLargestFile = uint64_t{1} << 20;
// A task of a stream of the host device: queue, wake-up, pool (bench_train_step with one token).
constexpr double kOpSeconds = 20e-6;

double seconds_of(const std::function<void()>& body) {
  body();
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point begin = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

// Wide enough for matmuls to be at their rate and for activations not to fit into caches.
ModelConfig sample_model() {
  ModelConfig config;
  config.hidden_size = 768;
  config.intermediate_size = 2048;
  config.layer_count = 1;
  config.head_count = 12;
  config.kv_head_count = 4;
  config.head_dim = 64;
  config.vocab_size = 2048;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-5f;
  return config;
}

// What an op does, in the unit of its rate.
double work(const gpu::Op& op) {
  const double flops = gpu::matmul_flops(op);
  return flops > 0 ? flops : gpu::cost(op).bytes;
}

class OpTimer {
 public:
  explicit OpTimer(gpu::Device& device)
      : device_(device),
        stream_(device.make_stream(gpu::StreamKind::compute, "measure")),
        memory_(device.allocate(4 * kPartBytes)) {}

  void time(const gpu::Op& op) {
    const gpu::Workspace workspace{memory_->data() + 3 * kPartBytes, device_.ops().workspace_bytes(op)};
    SLUICE_CHECK(workspace.size_bytes <= kPartBytes);
    const double seconds = seconds_of([&] {
      device_.ops().submit(*stream_, op, workspace);
      stream_->record().wait();
    });
    Sum& sum = sums_[gpu::name(op)];
    sum.work += work(op);
    sum.seconds += std::max(seconds - kOpSeconds, 0.1 * seconds);
  }

  DryRun::Memory memory() const {
    std::byte* const begin = memory_->data();
    return {begin, begin + kPartBytes, begin + 2 * kPartBytes, kPartBytes};
  }
  std::map<std::string, double> rates() const {
    std::map<std::string, double> result;
    for (const auto& [name, sum] : sums_)
      if (sum.work > 0) result[name] = sum.work / sum.seconds;
    return result;
  }

 private:
  static constexpr size_t kPartBytes = size_t{256} << 20;  // taken from the system as it is touched
  struct Sum {
    double work = 0;
    double seconds = 0;
  };
  gpu::Device& device_;
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<gpu::DeviceMemory> memory_;
  std::map<std::string, Sum> sums_;
};

std::map<std::string, double> measure_ops_rates(gpu::Device& device, DType dtype) {
  const ModelConfig config = sample_model();
  const Decoder decoder(config, dtype);
  const DecoderSpec spec = make_decoder_spec(config);
  const BatchLimits limits{.tokens = 512, .tokens_per_row = 512};
  OpTimer timer(device);
  DryRun run(
      device, spec, decoder, limits, [&](const gpu::Op& op) { timer.time(op); }, timer.memory());
  const BlockId layer = spec.layers[0];
  run.prepare(layer);
  run.embed(limits.tokens);
  run.forward_layer(layer, true);
  run.forward_final_norm();
  GradientLease head = run.gradients(spec.head_pieces[0]);
  run.head_once(0, head);
  run.token_loss();
  GradientLease norm = run.gradients(spec.final_norm);
  run.backward_final_norm(norm);
  GradientLease sums = run.gradients(layer);
  run.backward_layer(layer, sums);
  run.embedding_backward(limits.tokens, false);
  run.round_gradient(layer);
  return timer.rates();
}

void measure_host(Executor& executor, DType dtype, cpu_optim::StateFormat format, MachineRates& rates) {
  constexpr int64_t kElements = int64_t{4} << 20;
  constexpr size_t kCount = static_cast<size_t>(kElements);
  const AlignedBuffer memory(kCount * 20, "measuring the optimizer", AlignedBuffer::Fill::now);
  const auto part = [&](size_t index) { return memory.data() + kCount * 4 * index; };
  const bool has_low = cpu_optim::low_bytes(format, 1) > 0;
  const cpu_optim::StateSpan state{.format = format,
                                   .size = kElements,
                                   .weight = reinterpret_cast<BFloat16*>(part(0)),
                                   .low = has_low ? part(1) : nullptr,
                                   .first_moment = part(2),
                                   .second_moment = part(3)};
  const cpu_optim::FloatView gradient(dtype, part(4), kElements);
  const cpu_optim::AdamStep step = cpu_optim::make_adam_step({}, 1);
  rates.optimizer_parameters_per_second = static_cast<double>(kElements) / seconds_of([&] {
                                            cpu_optim::update(executor, state, gradient, step);
                                          });
  std::vector<double> sums(static_cast<size_t>(cpu_optim::norm_chunk_count(kElements)));
  rates.norm_bytes_per_second = static_cast<double>(kCount * size_bytes(dtype)) /
                                seconds_of([&] { cpu_optim::sums_of_squares(executor, gradient, sums); });
  const size_t half = kCount * 8;
  rates.copy_bytes_per_second =
      static_cast<double>(half) / seconds_of([&] {
        run_ranges(executor, static_cast<int64_t>(half), int64_t{1} << 20,
                   [&](int64_t begin, int64_t end, int) {
                     std::memcpy(memory.data() + half + begin, memory.data() + begin,
                                 static_cast<size_t>(end - begin));
                   });
      });
  uint64_t hash = 0;
  rates.checksum_bytes_per_second = static_cast<double>(half) / seconds_of([&] {
                                      for (size_t at = 0; at < half; at += size_t{1} << 20)
                                        hash ^= XXH3_64bits(memory.data() + at, size_t{1} << 20);
                                    });
  SLUICE_CHECK(hash != 1, "so that it is computed");
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

bool is_rate(double rate) {
  return std::isfinite(rate) && rate > 1e3 && rate < 1e18;
}

// The file's entries; empty where it is missing or is not what this program writes.
json read_entries(const std::filesystem::path& file) {
  try {
    json all = json::parse(read_text_file(file, kLargestFile));
    if (all.is_object() && all.value("version", json()) == kVersion && all["machines"].is_object())
      return all["machines"];
  } catch (const Error&) {
  } catch (const json::exception&) {
  }
  return json::object();
}

struct Field {
  const char* name;
  double MachineRates::*value;
};
constexpr Field kFields[] = {
    {"copy_bytes_per_second", &MachineRates::copy_bytes_per_second},
    {"optimizer_parameters_per_second", &MachineRates::optimizer_parameters_per_second},
    {"norm_bytes_per_second", &MachineRates::norm_bytes_per_second},
    {"checksum_bytes_per_second", &MachineRates::checksum_bytes_per_second}};

}  // namespace

MachineRates measure_machine(gpu::Device& device, Executor& executor, DType dtype,
                             cpu_optim::StateFormat format) {
  MachineRates rates{.ops = measure_ops_rates(device, dtype)};
  measure_host(executor, dtype, format, rates);
  return rates;
}

MachineRates machine_rates(gpu::Device& device, Executor& executor, DType dtype,
                           cpu_optim::StateFormat format, const std::function<void()>& report) {
  const std::filesystem::path drives = drive_settings_path();
  const std::filesystem::path file = drives.empty() ? drives : drives.parent_path() / "machine.json";
  const std::string key = processor_name() + ", " + std::to_string(executor.thread_count()) + " threads, " +
                          device.traits().kernel_table_id + ", " + std::string(name(dtype)) + ", " +
                          std::string(cpu_optim::name(format));
  if (const auto known = load_machine_rates(file, key)) return *known;
  report();
  const MachineRates rates = measure_machine(device, executor, dtype, format);
  try {
    if (!file.empty()) save_machine_rates(file, key, rates);
  } catch (const Error&) {  // a cache: whoever cannot write it measures again
  }
  return rates;
}

std::optional<MachineRates> load_machine_rates(const std::filesystem::path& file, const std::string& key) {
  if (file.empty()) return std::nullopt;
  const json entries = read_entries(file);
  const auto entry = entries.find(key);
  if (entry == entries.end()) return std::nullopt;
  try {
    MachineRates rates{.ops = entry->at("ops").get<std::map<std::string, double>>()};
    for (const Field& field : kFields) rates.*field.value = entry->at(field.name).get<double>();
    const bool likely = !rates.ops.empty() && std::ranges::all_of(rates.ops, [](const auto& op) {
      return is_rate(op.second);
    }) && std::ranges::all_of(kFields, [&](const Field& field) { return is_rate(rates.*field.value); });
    if (likely) return rates;
  } catch (const json::exception&) {
  }
  return std::nullopt;
}

void save_machine_rates(const std::filesystem::path& file, const std::string& key,
                        const MachineRates& rates) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  json entries = read_entries(file);
  json entry{{"ops", rates.ops}};
  for (const Field& field : kFields) entry[field.name] = rates.*field.value;
  entries[key] = std::move(entry);
  const json all{{"version", kVersion}, {"machines", std::move(entries)}};
  write_file_atomically(file, all.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

double op_seconds(const MachineRates& rates, const gpu::Op& op) {
  const auto found = rates.ops.find(gpu::name(op));
  return kOpSeconds + work(op) / (found == rates.ops.end() ? rates.copy_bytes_per_second : found->second);
}

LaneRates host_lane_rates(const MachineRates& rates, int thread_count, Processors processors) {
  LaneRates lanes{.optimizer_parameters_per_second = rates.optimizer_parameters_per_second,
                  .norm_bytes_per_second = rates.norm_bytes_per_second,
                  .checksum_bytes_per_second = rates.checksum_bytes_per_second,
                  .thread_count = thread_count,
                  .processors = processors};
  if (processors == Processors::one) {
    lanes.copy_in_bytes_per_second = rates.copy_bytes_per_second;
    lanes.copy_out_bytes_per_second = rates.copy_bytes_per_second;
  }
  return lanes;
}

}  // namespace sluice::finetune
