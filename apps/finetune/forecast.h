#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "apps/finetune/train_setup.h"
#include "engine/schedule/predict.h"
#include "gpu/timed/gpu_models.h"

namespace sluice::finetune {

// How long a run will take, and why: for `plan`. A value.
struct Forecast {
  Prediction step;
  double tokens = 0;         // a step, without padding where the data is known
  int64_t steps = 0;         // of the run; 0: unknown
  std::string compute_from;  // whose rates: "RTX 4090, by its data sheet"
  std::string disk_from;     // likewise; empty: nothing is on disk
  bool disk_assumed = false;

  double tokens_per_second() const { return step.step_seconds > 0 ? tokens / step.step_seconds : 0; }
  double run_seconds() const { return static_cast<double>(steps) * step.step_seconds; }
};

struct ForecastOptions {
  std::optional<gpu::GpuModel> gpu;         // computes; empty: this processor, which is measured once
  std::span<const std::string> spill_dirs;  // one a drive
  int64_t steps = 0;                        // 0: as the data says
};

// `device` is the one that the plan is for. Drives have the rates that nvme_bench kept; without them those of
// a named assumption.
Forecast make_forecast(gpu::Device& device, const TrainSetup& setup, const ForecastOptions& options);

// For people and for programs: bytes and busy seconds of each lane, the step, the run.
std::string forecast_table(const Forecast& forecast);
nlohmann::ordered_json forecast_json(const Forecast& forecast);

// "2 h 5 min", "41.3 s".
std::string format_seconds(double seconds);

}  // namespace sluice::finetune
