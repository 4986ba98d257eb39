#include "apps/finetune/state_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "engine/memory/block_layout.h"
#include "engine/memory/tier.h"

namespace sluice::finetune {
namespace {

using cpu_optim::StateFormat;

// Of all trained parameters, padding included.
size_t state_bytes(ModelSpec model, StateFormat format) {
  model.state_format = format;
  size_t bytes = 0;
  for (BlockId block{0}; block.value < static_cast<int>(model.blocks.size()); ++block.value) {
    const BlockLayout layout(model, block);
    bytes += layout.trained_bytes() + layout.moment_bytes();
  }
  return bytes;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

bool has_master(StateFormat format) {
  return cpu_optim::low_bytes(format, 1) > 0;
}

int moment_bits(StateFormat format) {
  return format == StateFormat::int8 ? 8 : static_cast<int>(cpu_optim::moment_bytes(format, 1)) * 8;
}

struct Report {
  StateFormat format;
  size_t bytes = 0;
  size_t gradient_bytes = 0;                            // a parameter
  std::vector<std::pair<StateFormat, size_t>> smaller;  // with the bytes that each would save
};

Report make_report(const TrainSetup& setup) {
  const ModelSpec model = trained_model(setup);
  Report report{.format = model.state_format,
                .bytes = state_bytes(model, model.state_format),
                .gradient_bytes = size_bytes(setup.trainer.gradient_dtype_or_default()),
                .smaller = {}};
  for (const StateFormat other : smaller_formats(report.format))
    report.smaller.emplace_back(other, report.bytes - std::min(report.bytes, state_bytes(model, other)));
  return report;
}

}  // namespace

double bytes_per_parameter(StateFormat format) {
  constexpr int64_t kCount = cpu_optim::kInt8Block;
  const size_t bytes = static_cast<size_t>(kCount) * 2 + cpu_optim::low_bytes(format, kCount) +
                       2 * cpu_optim::moment_bytes(format, kCount);
  return static_cast<double>(bytes) / static_cast<double>(kCount);
}

std::vector<StateFormat> smaller_formats(StateFormat format) {
  std::vector<StateFormat> smaller;
  for (const StateFormat other : cpu_optim::kStateFormats)
    if (bytes_per_parameter(other) < bytes_per_parameter(format)) smaller.push_back(other);
  return smaller;
}

std::string state_table(const TrainSetup& setup) {
  const Report report = make_report(setup);
  std::string text = "states: " + std::string(cpu_optim::name(report.format)) + ", " +
                     short_number(bytes_per_parameter(report.format)) + " bytes a parameter (" +
                     format_bytes(report.bytes) + "), and " + std::to_string(report.gradient_bytes) +
                     " of gradient until its update\n";
  for (const auto& [other, saved_bytes] : report.smaller) {
    text += "  --state_format " + std::string(cpu_optim::name(other)) + ": " +
            short_number(bytes_per_parameter(other)) + " bytes, saves " + format_bytes(saved_bytes) + "\n";
  }
  return text;
}

nlohmann::ordered_json state_format_json(const TrainSetup& setup) {
  const Report report = make_report(setup);
  nlohmann::ordered_json smaller = nlohmann::ordered_json::array();
  for (const auto& [other, saved_bytes] : report.smaller) {
    smaller.push_back({{"state_format", cpu_optim::name(other)},
                       {"bytes_per_parameter", bytes_per_parameter(other)},
                       {"saved_bytes", saved_bytes}});
  }
  return {{"state_format", cpu_optim::name(report.format)},
          {"bytes_per_parameter", bytes_per_parameter(report.format)},
          {"gradient_bytes_per_parameter", report.gradient_bytes},
          {"bytes", report.bytes},
          {"smaller", std::move(smaller)}};
}

std::string conversion_loss(StateFormat from, StateFormat to) {
  std::string lost;
  if (has_master(from) && !has_master(to))
    lost = "the low halves of the masters: each weight is rounded to the nearest bf16";
  // The numbers of 8-bit codes have more bits than a bf16.
  if (moment_bits(to) < 32 && moment_bits(to) != moment_bits(from)) {
    lost += lost.empty() ? "" : "; ";
    lost += "moments are rounded to " + std::to_string(moment_bits(to)) + " bits";
  }
  return lost;
}

}  // namespace sluice::finetune
