#include "apps/finetune/forecast.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "apps/common/drive_settings.h"
#include "apps/finetune/machine_rates.h"
#include "apps/finetune/walk_costs.h"
#include "engine/base/math.h"
#include "io/file.h"

namespace sluice::finetune {
namespace {

constexpr Lane kLanes[] = {Lane::compute,   Lane::copy_in,    Lane::copy_out,
                           Lane::disk_read, Lane::disk_write, Lane::optimizer};

// What a mid-range PCIe 3.0 drive sustains; of each drive that nvme_bench has not measured.
constexpr double kAssumedRead = 3.0e9, kAssumedWrite = 2.0e9, kAssumedMixed = 2.2e9;

// The micro-batch that the data brings on average; without data the largest.
BatchLimits usual_limits(const TrainSetup& setup) {
  BatchLimits limits = setup.trainer.limits;
  if (!setup.data || setup.data->size() == 0) return limits;
  int64_t tokens = 0;
  for (int64_t row = 0; row < setup.data->size(); ++row) tokens += setup.data->row_length(row);
  limits.tokens_per_row = std::max<int64_t>(1, divide_up(tokens, setup.data->size()));
  limits.tokens = std::min(limits.tokens, round_up(limits.rows * limits.tokens_per_row, kTokenPadding));
  return limits;
}

double usual_tokens(const TrainSetup& setup, const BatchLimits& limits) {
  if (!setup.data) return static_cast<double>(limits.tokens) * limits.micro_batch_count;
  const double rows = static_cast<double>(setup.data->size()) /
                      static_cast<double>(std::max<int64_t>(1, setup.steps_per_epoch));
  return rows * static_cast<double>(limits.tokens_per_row);
}

RatedWork rated_work(const TrainSetup& setup) {
  const TrainerOptions& options = setup.trainer;
  return {setup.model.config, options.compute_dtype, options.gradient_dtype_or_default(),
          options.state_format};
}

std::string gigabytes(double bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", bytes_per_second * 1e-9);
  return text;
}

// Stripes are dealt by speed, so the rates of several drives add up.
void add_drives(std::span<const std::string> folders, LaneRates& rates, Forecast& forecast) {
  double cpu_seconds_per_gb = 0;
  for (const std::string& folder : folders) {
    const std::optional<DriveSettings> known = find_drive_settings(nearest_existing(folder));
    const DriveSettings drive = known.value_or(DriveSettings{.read_bytes_per_second = kAssumedRead,
                                                             .write_bytes_per_second = kAssumedWrite,
                                                             .mixed_bytes_per_second = kAssumedMixed});
    rates.disk_read_bytes_per_second += drive.read_bytes_per_second;
    rates.disk_write_bytes_per_second += drive.write_bytes_per_second;
    rates.disk_mixed_bytes_per_second += drive.mixed_bytes_per_second;
    cpu_seconds_per_gb =
        std::max(cpu_seconds_per_gb, (drive.read_cpu_seconds_per_gb + drive.write_cpu_seconds_per_gb) / 2);
    forecast.disk_from += (forecast.disk_from.empty() ? "" : ", ") + folder;
    forecast.disk_from += known ? ", measured " + drive.measured_at : ", assumed";
    forecast.disk_assumed = forecast.disk_assumed || !known;
  }
  rates.disk_cpu_seconds_per_byte = cpu_seconds_per_gb * 1e-9;
  if (forecast.disk_from.empty()) return;
  forecast.disk_from += ": " + gigabytes(rates.disk_read_bytes_per_second) + " GB/s reading, " +
                        gigabytes(rates.disk_write_bytes_per_second) + " writing, " +
                        gigabytes(rates.disk_mixed_bytes_per_second) + " both";
}

std::string lane_row(const Forecast& forecast, Lane lane) {
  const double bytes = forecast.step.bytes[lane];
  const std::string moved = lane == Lane::compute ? "" : format_bytes(static_cast<size_t>(bytes));
  char text[160];
  std::snprintf(text, sizeof text, "  %-36s %12s %13.3f s\n", ("  " + std::string(name(lane))).c_str(),
                moved.c_str(), forecast.step.busy_seconds[lane]);
  return text;
}

}  // namespace

Forecast make_forecast(gpu::Device& device, const TrainSetup& setup, const ForecastOptions& options) {
  Forecast forecast{.steps = options.steps > 0 ? options.steps : setup.total_steps};
  const TrainerOptions& trainer = setup.trainer;
  const MachineRates machine = machine_rates(*setup.runtime.device, *setup.runtime.pool, rated_work(setup),
                                             [] { std::cerr << "Measuring this machine, once ...\n"; });
  const int threads = setup.runtime.pool->thread_count();
  LaneRates rates = host_lane_rates(machine, threads, options.gpu ? Processors::apart : Processors::one);
  OpSeconds seconds = [&](const gpu::Op& op) { return op_seconds(machine, op); };
  forecast.compute_from = "this processor with " + std::to_string(threads) + " thread(s), measured";
  if (options.gpu) {
    rates.copy_in_bytes_per_second = options.gpu->copy_in_bytes_per_second;
    rates.copy_out_bytes_per_second = options.gpu->copy_out_bytes_per_second;
    seconds = [&](const gpu::Op& op) { return gpu::op_seconds(*options.gpu, gpu::cost(op)); };
    forecast.compute_from = options.gpu->name + ", by its data sheet";
  }
  add_drives(options.spill_dirs, rates, forecast);
  const BatchLimits usual = usual_limits(setup);
  forecast.tokens = usual_tokens(setup, usual);
  forecast.step = predict_step(device, setup.model.config, trainer, usual, seconds, rates);
  return forecast;
}

std::string forecast_table(const Forecast& forecast) {
  char step[160];
  std::snprintf(step, sizeof step, "  %.3f s a step, %.0f tokens/s; bottleneck: %s\n",
                forecast.step.step_seconds, forecast.tokens_per_second(),
                std::string(forecast.step.bottleneck).c_str());
  std::string text = "time a step, predicted (" + forecast.compute_from + ")\n";
  for (const Lane lane : kLanes) {
    if (forecast.step.busy_seconds[lane] > 0 || forecast.step.bytes[lane] > 0)
      text += lane_row(forecast, lane);
  }
  text += step;
  if (forecast.steps > 0) {
    text +=
        "  " + std::to_string(forecast.steps) + " step(s): " + format_seconds(forecast.run_seconds()) + "\n";
  }
  if (!forecast.disk_from.empty()) text += "  drives: " + forecast.disk_from + "\n";
  if (forecast.disk_assumed) text += "  (to measure a drive, once: nvme_bench --quick --folder DIR)\n";
  return text;
}

nlohmann::ordered_json forecast_json(const Forecast& forecast) {
  nlohmann::ordered_json lanes;
  for (const Lane lane : kLanes) {
    lanes[std::string(name(lane))] = {{"bytes", static_cast<uint64_t>(forecast.step.bytes[lane])},
                                      {"busy_seconds", forecast.step.busy_seconds[lane]},
                                      {"critical_seconds", forecast.step.critical_seconds[lane]}};
  }
  nlohmann::ordered_json json{{"seconds_per_step", forecast.step.step_seconds},
                              {"tokens_per_second", forecast.tokens_per_second()},
                              {"bottleneck", forecast.step.bottleneck},
                              {"lanes", lanes},
                              {"compute_from", forecast.compute_from}};
  if (!forecast.disk_from.empty()) {
    json["disk_from"] = forecast.disk_from;
    json["disk_assumed"] = forecast.disk_assumed;
  }
  if (forecast.steps > 0) {
    json["steps"] = forecast.steps;
    json["run_seconds"] = forecast.run_seconds();
  }
  return json;
}

std::string format_seconds(double seconds) {
  char text[64];
  if (seconds < 120) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
    return text;
  }
  const auto minutes = static_cast<int64_t>(std::llround(seconds / 60));
  if (minutes < 60) return std::to_string(minutes) + " min";
  const int64_t hours = minutes / 60;
  if (hours < 48) return std::to_string(hours) + " h " + std::to_string(minutes % 60) + " min";
  return std::to_string(hours / 24) + " d " + std::to_string(hours % 24) + " h";
}

}  // namespace sluice::finetune
