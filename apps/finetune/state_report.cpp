#include "apps/finetune/state_report.h"

#include <algorithm>
#include <cstdio>

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
  const ModelSpec model = trained_model(setup);
  const StateFormat format = model.state_format;
  const size_t bytes = state_bytes(model, format);
  std::string text = "states: " + std::string(cpu_optim::name(format)) + ", " +
                     short_number(bytes_per_parameter(format)) + " bytes a parameter (" +
                     format_bytes(bytes) + "), and " +
                     std::to_string(size_bytes(setup.trainer.gradient_dtype_or_default())) +
                     " of gradient until its update\n";
  for (const StateFormat other : smaller_formats(format)) {
    text += "  --state_format " + std::string(cpu_optim::name(other)) + ": " +
            short_number(bytes_per_parameter(other)) + " bytes, saves " +
            format_bytes(bytes - std::min(bytes, state_bytes(model, other))) + "\n";
  }
  return text;
}

nlohmann::ordered_json state_format_json(const TrainSetup& setup) {
  const ModelSpec model = trained_model(setup);
  const StateFormat format = model.state_format;
  const size_t bytes = state_bytes(model, format);
  nlohmann::ordered_json smaller = nlohmann::ordered_json::array();
  for (const StateFormat other : smaller_formats(format)) {
    smaller.push_back({{"state_format", cpu_optim::name(other)},
                       {"bytes_per_parameter", bytes_per_parameter(other)},
                       {"saved_bytes", bytes - std::min(bytes, state_bytes(model, other))}});
  }
  return {{"state_format", cpu_optim::name(format)},
          {"bytes_per_parameter", bytes_per_parameter(format)},
          {"gradient_bytes_per_parameter", size_bytes(setup.trainer.gradient_dtype_or_default())},
          {"bytes", bytes},
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
