#include "apps/finetune/machine_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>
#include <xxhash.h>

#include "apps/common/drive_settings.h"
#include "apps/common/median.h"
#include "apps/finetune/dry_run.h"
#include "cpu_optim/adamw.h"
#include "cpu_optim/convert.h"
#include "cpu_optim/norm.h"
#include "engine/base/error.h"
#include "gpu/op_cost.h"
#include "io/aligned_buffer.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr int kVersion = 2;
constexpr int kRounds = 3;  // after one to warm up
constexpr uint64_t kLargestFile = uint64_t{1} << 20;
// A task of a stream of the host device: queue, wake-up, pool (bench_train_step with one token).
constexpr double kOpSeconds = 20e-6;

double timed(const std::function<void()>& body) {
  const Clock::time_point begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double seconds_of(const std::function<void()>& body) {
  body();
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) seconds.push_back(timed(body));
  return median(seconds);
}

constexpr int64_t kSampleTokens = 512;

// One layer. From a hidden size of about a thousand on matmuls are at their rate whatever their shape; of
// narrower ones the shape counts.
ModelConfig sample_model(const ModelConfig& model) {
  constexpr int64_t kWide = 1024, kMostLayerElements = int64_t{16} << 20, kVocabulary = 8192;
  ModelConfig config = model;
  if (model.hidden_size > kWide || model.hidden_size * model.intermediate_size > kMostLayerElements) {
    config = {};
    config.hidden_size = kWide;
    config.intermediate_size = 3 * kWide;
    config.head_count = 16;
    config.kv_head_count = 4;
    config.head_dim = 64;
    config.rms_norm_eps = 1e-5f;
  }
  config.layer_count = 1;
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = kSampleTokens;
  return config;
}

std::string shape_name(const ModelConfig& sample) {
  return "layer " + std::to_string(sample.hidden_size) + "x" + std::to_string(sample.intermediate_size) +
         ", heads " + std::to_string(sample.head_count) + "/" + std::to_string(sample.kv_head_count) + "x" +
         std::to_string(sample.head_dim);
}

// What an op does, in the unit of its rate.
double work(const gpu::Op& op) {
  const double flops = gpu::matmul_flops(op);
  return flops > 0 ? flops : gpu::cost(op).bytes;
}

// Of the ops of a sequence that is run again and again: what an op finds in the caches is what those before
// it left there, as in a step.
class OpTimer {
 public:
  explicit OpTimer(gpu::Device& device)
      : device_(device),
        stream_(device.make_stream(gpu::StreamKind::compute, "measure")),
        memory_(device.allocate(4 * kPartBytes)) {}

  void begin_round(bool warm_up) {
    next_ = 0;
    warm_up_ = warm_up;
  }
  void time(const gpu::Op& op) {
    const gpu::Workspace workspace{memory_->data() + 3 * kPartBytes, device_.ops().workspace_bytes(op)};
    SLUICE_CHECK(workspace.size_bytes <= kPartBytes);
    const double seconds = timed([&] {
      device_.ops().submit(*stream_, op, workspace);
      stream_->record().wait();
    });
    if (warm_up_) {
      calls_.push_back({gpu::name(op), work(op), {}});
    } else {
      calls_.at(next_++).seconds.push_back(seconds);
    }
  }

  DryRun::Memory memory() const {
    std::byte* const begin = memory_->data();
    return {begin, begin + kPartBytes, begin + 2 * kPartBytes, kPartBytes};
  }
  std::map<std::string, double> rates() const {
    std::map<std::string, double> work, seconds, result;
    for (const Call& call : calls_) {
      const double middle = median(call.seconds);
      work[call.name] += call.work;
      seconds[call.name] += std::max(middle - kOpSeconds, 0.1 * middle);
    }
    for (const auto& [name, amount] : work)
      if (amount > 0) result[name] = amount / seconds.at(name);
    return result;
  }

 private:
  static constexpr size_t kPartBytes = size_t{256} << 20;  // taken from the system as it is touched
  struct Call {
    std::string name;
    double work = 0;
    std::vector<double> seconds;  // by round
  };
  gpu::Device& device_;
  std::unique_ptr<gpu::Stream> stream_;
  std::unique_ptr<gpu::DeviceMemory> memory_;
  std::vector<Call> calls_;
  size_t next_ = 0;
  bool warm_up_ = true;
};

// Every op of a step once.
void run_sample(DryRun& run, const DecoderSpec& spec, int64_t tokens) {
  const BlockId layer = spec.layers[0];
  run.prepare(layer);
  run.embed(tokens);
  run.forward_layer(layer, true);
  run.forward_final_norm();
  GradientLease head = run.gradients(spec.head_pieces[0]);
  run.head_once(0, head);
  run.token_loss();
  GradientLease norm = run.gradients(spec.final_norm);
  run.backward_final_norm(norm);
  GradientLease sums = run.gradients(layer);
  run.backward_layer(layer, sums);
  run.embedding_backward(tokens, false);
  run.round_gradient(layer);
}

std::map<std::string, double> measure_ops_rates(gpu::Device& device, const RatedWork& work) {
  const ModelConfig config = sample_model(work.model);
  const Decoder decoder(config, work.compute_dtype);
  const DecoderSpec spec = make_decoder_spec(config);
  const BatchLimits limits{.tokens = kSampleTokens, .tokens_per_row = kSampleTokens};
  OpTimer timer(device);
  for (int round = 0; round <= kRounds; ++round) {
    timer.begin_round(round == 0);
    DryRun run(
        device, spec, decoder, limits, [&](const gpu::Op& op) { timer.time(op); }, timer.memory());
    run_sample(run, spec, limits.tokens);
  }
  return timer.rates();
}

void measure_update(Executor& executor, const RatedWork& work, MachineRates& rates) {
  constexpr int64_t kElements = int64_t{4} << 20;
  constexpr size_t kCount = static_cast<size_t>(kElements);
  const AlignedBuffer memory(kCount * 20, "measuring the optimizer", AlignedBuffer::Fill::now);
  const auto part = [&](size_t index) { return memory.data() + kCount * 4 * index; };
  const bool has_low = cpu_optim::low_bytes(work.state_format, 1) > 0;
  const cpu_optim::StateSpan state{.format = work.state_format,
                                   .size = kElements,
                                   .weight = reinterpret_cast<BFloat16*>(part(0)),
                                   .low = has_low ? part(1) : nullptr,
                                   .first_moment = part(2),
                                   .second_moment = part(3)};
  const cpu_optim::FloatView gradient(work.gradient_dtype, part(4), kElements);
  const cpu_optim::AdamStep step = cpu_optim::make_adam_step({}, 1);
  rates.optimizer_parameters_per_second = static_cast<double>(kElements) / seconds_of([&] {
                                            cpu_optim::update(executor, state, gradient, step);
                                          });
  std::vector<double> sums(static_cast<size_t>(cpu_optim::norm_chunk_count(kElements)));
  rates.norm_bytes_per_second = static_cast<double>(kCount * size_bytes(work.gradient_dtype)) /
                                seconds_of([&] { cpu_optim::sums_of_squares(executor, gradient, sums); });
}

void measure_memory(Executor& executor, MachineRates& rates) {
  constexpr size_t kHalf = size_t{32} << 20;
  const AlignedBuffer memory(2 * kHalf, "measuring memory", AlignedBuffer::Fill::now);
  rates.copy_bytes_per_second =
      static_cast<double>(kHalf) / seconds_of([&] {
        run_ranges(executor, static_cast<int64_t>(kHalf), int64_t{1} << 20,
                   [&](int64_t begin, int64_t end, int) {
                     std::memcpy(memory.data() + kHalf + begin, memory.data() + begin,
                                 static_cast<size_t>(end - begin));
                   });
      });
  uint64_t hash = 0;
  rates.checksum_bytes_per_second = static_cast<double>(kHalf) / seconds_of([&] {
                                      for (size_t at = 0; at < kHalf; at += size_t{1} << 20)
                                        hash ^= XXH3_64bits(memory.data() + at, size_t{1} << 20);
                                    });
  SLUICE_CHECK(hash != 1, "so that it is computed");
  const std::span<float> values(reinterpret_cast<float*>(memory.data()), memory.size_bytes() / sizeof(float));
  rates.thread_bytes_per_second = static_cast<double>(2 * values.size_bytes()) /
                                  seconds_of([&] { cpu_optim::round_to_bf16(values, values); });
}

// Tokens that differ, as most of a large step's do.
void measure_inputs(MachineRates& rates) {
  constexpr int32_t kTokens = 8192, kVocabulary = 32768, kOdd = 40503;
  MicroBatch batch{.document_offsets = {0, kTokens}};
  for (int32_t i = 0; i < kTokens; ++i) {
    batch.tokens.push_back(i * kOdd % kVocabulary);
    batch.positions.push_back(i);
    batch.targets.push_back(0);
    batch.weights.push_back(1);
  }
  rates.input_tokens_per_second = kTokens / seconds_of([&] {
                                    const StepInputs inputs({&batch, 1}, kVocabulary);
                                  });
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
    {"checksum_bytes_per_second", &MachineRates::checksum_bytes_per_second},
    {"thread_bytes_per_second", &MachineRates::thread_bytes_per_second},
    {"input_tokens_per_second", &MachineRates::input_tokens_per_second}};

}  // namespace

MachineRates measure_machine(gpu::Device& device, Executor& executor, const RatedWork& work) {
  MachineRates rates{.ops = measure_ops_rates(device, work)};
  measure_update(executor, work, rates);
  measure_memory(executor, rates);
  measure_inputs(rates);
  return rates;
}

MachineRates machine_rates(gpu::Device& device, Executor& executor, const RatedWork& work,
                           const std::function<void()>& report) {
  const std::filesystem::path drives = drive_settings_path();
  const std::filesystem::path file = drives.empty() ? drives : drives.parent_path() / "machine.json";
  const std::string key = processor_name() + ", " + std::to_string(executor.thread_count()) + " threads, " +
                          device.traits().kernel_table_id + ", " + shape_name(sample_model(work.model)) +
                          ", " + std::string(name(work.compute_dtype)) + ", gradients " +
                          std::string(name(work.gradient_dtype)) + ", " +
                          std::string(cpu_optim::name(work.state_format));
  if (const auto known = load_machine_rates(file, key)) return *known;
  report();
  const MachineRates rates = measure_machine(device, executor, work);
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
                  .thread_bytes_per_second = rates.thread_bytes_per_second,
                  .input_tokens_per_second = rates.input_tokens_per_second,
                  .thread_count = thread_count,
                  .processors = processors};
  if (processors == Processors::one) {
    lanes.copy_in_bytes_per_second = rates.copy_bytes_per_second;
    lanes.copy_out_bytes_per_second = rates.copy_bytes_per_second;
  }
  return lanes;
}

}  // namespace sluice::finetune
