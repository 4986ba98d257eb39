// What `finetune plan` foretells, held against runs: the peak of memory and the seconds of a step, in
// settings of SmolLM2-135M's shape with random weights (bench/support/plan_settings.h), half of them on
// modelled GPUs without numerics.
//
//   bench_plan_accuracy [--full] [--folder DIR] [--setting NAME]
//
// Each setting runs twice (--full: three times), in processes of their own. The rates of drive, matmul and
// memory are measured before, between, and after, and the step is foretold from each; the mean counts. Where
// the predictions scatter by more than 8 % about their middle, or the seconds of drives or of matmuls in them
// (each against itself), the setting is inconclusive and left out of what is judged of time; --full tries it
// once more before.
//
// First checks that losses are finite, and that the run walked the plan that was foretold: the same moves,
// and as many bytes from and to device and drives.
//
//   ratio plan_memory_worst E   |measured / planned - 1|: RssAnon + RssShmem against the host tier (on the
//   CPU
//                               both tiers), and what the modelled device handed out against the device tier
//   ratio plan_time_median E    |predicted / measured - 1| of the seconds of a step
//   ratio plan_time_worst E
// Fails above 0.05, 0.15, 0.30, or where nothing is conclusive.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/median.h"
#include "apps/finetune/machine_rates.h"
#include "apps/finetune/run_setup.h"
#include "apps/finetune/walk_costs.h"
#include "bench/support/drive_probe.h"
#include "bench/support/median_interval.h"
#include "bench/support/plan_settings.h"
#include "bench/support/program.h"
#include "engine/base/error.h"
#include "tests/support/child_process.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;
using finetune::TrainerOptions;
using nlohmann::json;

constexpr double kMemoryLimit = 0.05, kTimeMedianLimit = 0.15, kTimeWorstLimit = 0.30;
constexpr double kScatterLimit = 0.08;
constexpr double kShareThatCounts = 0.1;  // of a step

struct Arguments {
  std::string folder = ".";
  std::string setting;  // only this one
  bool child = false;   // run it here, and say what was measured
  bool full = false;
};

// What the kernel moved from and to drives for this process.
double transferred_bytes() {
  std::ifstream in("/proc/self/io");
  double sum = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("read_bytes:") || line.starts_with("write_bytes:"))
      sum += std::stod(line.substr(line.find(':') + 1));
  }
  return sum;
}

// Of a plan, what a run and a prediction must agree on.
json moves(const Plan& plan) {
  return {{"fetches", std::ranges::count(plan.accesses, true, &PlannedAccess::fetch_again)},
          {"recomputed", plan.recomputed_count()},
          {"device_bytes", plan.peak_bytes(Tier::device)},
          {"copied_in", plan.copy_in_bytes_per_walk},
          {"copied_out", plan.copy_out_bytes_per_walk},
          {"disk_read", plan.disk_read_bytes_per_walk},
          {"disk_written", plan.disk_write_bytes_per_walk},
          {"update_slots", plan.update_slot_count},
          {"read_ahead", plan.read_ahead}};
}

// In a process of its own: what was measured, as JSON on standard output.
int run_here(const PlanSetting& setting, const fs::path& folder) {
  const finetune::PeakMemory peak;
  TrialOptions options = setting.at(folder);
  options.host_parts = {finetune::process_base()};
  TrialRun run(options);
  const Engine& engine = run.trainer().engine();
  std::vector<double> seconds, losses;
  // The first step has no update before it, the second touches what the first did not.
  for (int step = 0; step < 2; ++step) losses.push_back(run.step().loss);
  const double transferred = transferred_bytes();
  const size_t copied_in = engine.counters().copied_in_bytes;
  for (int step = 0; step < setting.step_count; ++step) {
    const TrialRun::Step timed = run.step();
    seconds.push_back(timed.seconds);
    losses.push_back(timed.loss);
  }
  const double transferred_a_step = (transferred_bytes() - transferred) / setting.step_count;
  const size_t copied_in_a_step =
      (engine.counters().copied_in_bytes - copied_in) / static_cast<size_t>(setting.step_count);
  // As `train` ends, which needs memory too: the hash of the state, and the weights that are exported.
  (void)run.trainer().engine().state_hash();
  read_weights(run.trainer().engine().store());
  const Plan& plan = engine.plan();
  const json found{
      {"finite", std::ranges::all_of(losses, [](double loss) { return std::isfinite(loss); })},
      {"seconds", seconds},
      {"transferred", transferred_a_step},
      {"copied_in", copied_in_a_step},
      {"peak", peak.bytes()},
      {"device_peak", run.timed_device() != nullptr ? run.timed_device()->peak_memory_bytes() : 0},
      {"planned_host", plan.peak_bytes(Tier::host)},
      {"planned_device", plan.peak_bytes(Tier::device)},
      {"moves", moves(plan)}};
  std::printf("%s\n", found.dump().c_str());
  return 0;
}

json run_in_child(const PlanSetting& setting, const Arguments& arguments) {
  test::ChildProcess child({test::program_path("bench_plan_accuracy"), "--child", "--setting", setting.name,
                            "--folder", arguments.folder});
  const test::Outcome outcome = child.finish();
  if (outcome.code != 0) {
    throw Error(ErrorKind::runtime,
                setting.name + " ended with " + std::to_string(outcome.code) + ": " + outcome.err);
  }
  return json::parse(outcome.out);
}

struct Rates {
  finetune::MachineRates machine;
  LaneRates drive;
  double zero_bytes_per_second = 0;  // of one thread that writes zeros
};

// Copies from a modelled GPU without numerics are zeros that a thread of ours writes.
double measure_zeros() {
  constexpr size_t kBytes = size_t{64} << 20;
  const AlignedBuffer memory(kBytes, "measuring memory", AlignedBuffer::Fill::now);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    std::memset(memory.data(), 0, kBytes);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(kBytes) / seconds.count());
  }
  return best;
}

struct Foretold {
  Prediction step;
  json moves;
};

// Measures, and foretells from what it measured.
class Prophet {
 public:
  explicit Prophet(fs::path folder) : folder_(std::move(folder)), runtime_(finetune::make_runtime({})) {}

  Rates measure(const PlanSetting& setting) {
    const TrainerOptions options = trainer_options(setting.at(folder_));
    Rates rates;
    rates.machine = finetune::measure_machine(*runtime_.device, *runtime_.pool,
                                              {model_config(setting.trial), options.compute_dtype,
                                               options.gradient_dtype_or_default(), options.state_format});
    rates.zero_bytes_per_second = measure_zeros();
    if (!setting.on_disk()) return rates;
    if (!drive_) drive_.emplace(folder_);
    drive_->measure(rates.drive);
    return rates;
  }

  Foretold foretell(const PlanSetting& setting, const Rates& rates) const {
    const auto& gpu = setting.trial.gpu;
    std::unique_ptr<gpu::TimedDevice> timed;
    if (gpu) timed = gpu::make_timed_device(*runtime_.device, {.model = *gpu});
    gpu::Device& device = timed ? static_cast<gpu::Device&>(*timed) : *runtime_.device;
    const TrialOptions trial = setting.at(folder_);
    const ModelConfig config = model_config(trial);
    const TrainerOptions options = trainer_options(trial);
    const finetune::OpSeconds seconds = [&](const gpu::Op& op) {
      return gpu ? gpu::op_seconds(*gpu, gpu::cost(op)) : finetune::op_seconds(rates.machine, op);
    };
    return {finetune::predict_step(device, config, options, options.limits, seconds, lanes(setting, rates)),
            moves(finetune::Trainer::plan(device, config, options))};
  }

 private:
  LaneRates lanes(const PlanSetting& setting, const Rates& rates) const {
    const auto& gpu = setting.trial.gpu;
    LaneRates lanes = finetune::host_lane_rates(rates.machine, runtime_.pool->thread_count(),
                                                gpu ? Processors::apart : Processors::one);
    lanes.disk_read_bytes_per_second = rates.drive.disk_read_bytes_per_second;
    lanes.disk_write_bytes_per_second = rates.drive.disk_write_bytes_per_second;
    lanes.disk_mixed_bytes_per_second = rates.drive.disk_mixed_bytes_per_second;
    lanes.disk_cpu_seconds_per_byte = rates.drive.disk_cpu_seconds_per_byte;
    if (!gpu) return lanes;
    lanes.copy_in_bytes_per_second = gpu->copy_in_bytes_per_second;
    lanes.copy_out_bytes_per_second = std::min(gpu->copy_out_bytes_per_second, rates.zero_bytes_per_second);
    return lanes;
  }

  const fs::path folder_;
  finetune::Runtime runtime_;
  std::optional<DriveProbe> drive_;
};

// How far predictions are from their middle: of the step, and of drives and matmuls where they take a good
// part of it.
double scatter(const PlanSetting& setting, const std::vector<Prediction>& predictions) {
  double worst = 0;
  const auto judge = [&](const auto& seconds) {
    double least = seconds(predictions.at(0)), most = least;
    for (const Prediction& prediction : predictions) {
      least = std::min(least, seconds(prediction));
      most = std::max(most, seconds(prediction));
    }
    if (most >= kShareThatCounts * predictions[0].step_seconds)
      worst = std::max(worst, (most - least) / (most + least));
  };
  judge([](const Prediction& of) { return of.step_seconds; });
  judge([](const Prediction& of) {
    return of.busy_seconds[Lane::disk_read] + of.busy_seconds[Lane::disk_write];
  });
  if (!setting.trial.gpu) judge([](const Prediction& of) { return of.busy_seconds[Lane::compute]; });
  return worst;
}

// Throws Error(runtime) where the run did not do what was foretold of it.
void verify(const PlanSetting& setting, const Foretold& foretold, const json& found) {
  const auto check = [&](bool holds, const char* what) {
    if (holds) return;
    throw Error(ErrorKind::runtime,
                setting.name + ": " + what + "\n" + foretold.moves.dump() + "\n" + found.dump());
  };
  check(found.at("finite").get<bool>(), "a loss is not finite");
  check(found.at("moves") == foretold.moves, "the plan of the run is not the one that was foretold");
  check(found.at("copied_in") == foretold.moves.at("copied_in"), "other bytes were copied than planned");
  const PerLane<double>& bytes = foretold.step.bytes;
  const double planned = bytes[Lane::disk_read] + bytes[Lane::disk_write];
  // Ends of sections are padded, and the embedding's rows are read in whole checksum blocks.
  check(std::abs(found.at("transferred").get<double>() - planned) <= 0.1 * planned + 1e6,
        "other bytes passed the drives than planned");
}

double memory_error(const PlanSetting& setting, const json& found) {
  const auto bytes = [&](const char* key) { return found.at(key).get<double>(); };
  const double measured = bytes("peak"), on_device = bytes("device_peak");
  const double host = bytes("planned_host"), device = bytes("planned_device");
  const double in_ram = setting.trial.gpu ? host : host + device;
  std::printf("  memory: measured %.3f GB, planned %.3f", measured * 1e-9, in_ram * 1e-9);
  if (setting.trial.gpu) std::printf("; on the device %.3f, planned %.3f", on_device * 1e-9, device * 1e-9);
  std::printf("\n");
  const double error = std::abs(measured / in_ram - 1);
  return setting.trial.gpu ? std::max(error, std::abs(on_device / device - 1)) : error;
}

void print(const Prediction& of) {
  std::printf("  predicted %.3f s, bottleneck %s;", of.step_seconds, std::string(of.bottleneck).c_str());
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    const auto at = static_cast<Lane>(lane);
    if (of.busy_seconds[at] > 0) std::printf(" %s %.3f", std::string(name(at)).c_str(), of.busy_seconds[at]);
  }
  std::printf("\n");
}

struct Judged {
  std::string name;
  double memory_error = 0;
  double predicted = 0, measured = 0;  // seconds a step
  bool conclusive = true;
  double time_error() const { return std::abs(predicted / measured - 1); }
};

Judged judge_once(const PlanSetting& setting, Prophet& prophet, const Arguments& arguments) {
  Judged judged{.name = setting.name};
  std::vector<Prediction> predictions{prophet.foretell(setting, prophet.measure(setting)).step};
  std::vector<double> seconds;
  for (int round = 0; round < (arguments.full ? 3 : 2); ++round) {
    const json found = run_in_child(setting, arguments);
    const Foretold foretold = prophet.foretell(setting, prophet.measure(setting));
    verify(setting, foretold, found);
    predictions.push_back(foretold.step);
    std::ranges::copy(found.at("seconds").get<std::vector<double>>(), std::back_inserter(seconds));
    judged.memory_error = std::max(judged.memory_error, memory_error(setting, found));
  }
  for (const Prediction& prediction : predictions) {
    print(prediction);
    judged.predicted += prediction.step_seconds / static_cast<double>(predictions.size());
  }
  judged.measured = median(seconds);
  const double apart = scatter(setting, predictions);
  judged.conclusive = apart <= kScatterLimit;
  std::printf("  measured %.3f s (%.3f to %.3f); rates scatter by %.1f %%: %s\n", judged.measured,
              std::ranges::min(seconds), std::ranges::max(seconds), 100 * apart,
              judged.conclusive ? "conclusive" : "inconclusive");
  return judged;
}

Judged judge(const PlanSetting& setting, Prophet& prophet, const Arguments& arguments) {
  std::printf("%s: %lld tokens a step\n", setting.name.c_str(),
              static_cast<long long>(setting.trial.workload.tokens()));
  const Judged judged = judge_once(setting, prophet, arguments);
  return judged.conclusive || !arguments.full ? judged : judge_once(setting, prophet, arguments);
}

int conclude(const std::vector<Judged>& all) {
  double memory_worst = 0;
  std::vector<double> errors;
  std::printf("\n%-26s %11s %13s %12s %8s\n", "setting", "memory off", "predicted s", "measured s", "off");
  for (const Judged& judged : all) {
    std::printf("%-26s %9.1f %% %13.3f %12.3f %6.1f %%%s\n", judged.name.c_str(), 100 * judged.memory_error,
                judged.predicted, judged.measured, 100 * judged.time_error(),
                judged.conclusive ? "" : "  inconclusive");
    memory_worst = std::max(memory_worst, judged.memory_error);
    if (judged.conclusive) errors.push_back(judged.time_error());
  }
  std::printf("ratio plan_memory_worst %.3f\n", memory_worst);
  std::printf("%zu of %zu settings inconclusive in time\n", all.size() - errors.size(), all.size());
  if (errors.empty()) {
    std::printf("FAILED: the machine is too restless to judge any prediction of time\n");
    return 1;
  }
  const double worst = std::ranges::max(errors), middle = median_interval(errors).median;
  std::printf("ratio plan_time_median %.3f\nratio plan_time_worst %.3f\n", middle, worst);
  const bool good = memory_worst <= kMemoryLimit && middle <= kTimeMedianLimit && worst <= kTimeWorstLimit;
  if (!good) std::printf("FAILED: above %.2f, %.2f, %.2f\n", kMemoryLimit, kTimeMedianLimit, kTimeWorstLimit);
  return good ? 0 : 1;
}

std::vector<PlanSetting> chosen(const Arguments& arguments) {
  std::vector<PlanSetting> all = plan_settings();
  const size_t count = all.size();
  if (!arguments.setting.empty()) {
    std::erase_if(all, [&](const PlanSetting& setting) { return setting.name != arguments.setting; });
    if (all.empty()) throw Error(ErrorKind::usage, "no setting is called '" + arguments.setting + "'");
  } else if (!arguments.full) {
    std::erase_if(all, [](const PlanSetting& setting) { return !setting.brief; });
    std::printf("%zu of %zu settings; --full runs all\n", all.size(), count);
  }
  return all;
}

int run(const Arguments& arguments) {
  const std::vector<PlanSetting> settings = chosen(arguments);
  if (arguments.child) return run_here(settings.at(0), arguments.folder);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Prophet prophet(arguments.folder);
  std::vector<Judged> judged;
  for (const PlanSetting& setting : settings) judged.push_back(judge(setting, prophet, arguments));
  return conclude(judged);
}

}  // namespace
}  // namespace sluice::bench

int main(int count, char** values) {
  using namespace sluice;
  bench::Arguments arguments;
  bench::Program program("bench_plan_accuracy", "Foretold against measured memory and seconds of a step.");
  program.add({.name = "folder", .value = text_value(arguments.folder, "DIR"), .help = "on the drive"});
  program.add({.name = "setting", .value = text_value(arguments.setting, "NAME"), .help = "only this one"});
  program.add({.name = "child",
               .value = flag_value(arguments.child),
               .help = "run the setting in this process",
               .aliases = {},
               .presence = Presence::hidden});
  return program.main(count, values, [&] {
    arguments.full = program.full();
    return bench::run(arguments);
  });
}
