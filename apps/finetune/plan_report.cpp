#include "apps/finetune/plan_report.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "gpu/host/kernel_table.h"

namespace sluice::finetune {
namespace {

constexpr std::array kTiers{Tier::device, Tier::host, Tier::disk};

std::string row(const std::string& name, size_t size_bytes) {
  char text[160];
  std::snprintf(text, sizeof text, "  %-36s %12s %16zu\n", name.c_str(), format_bytes(size_bytes).c_str(),
                size_bytes);
  return text;
}

std::string tier_table(const Plan& plan, Tier tier) {
  std::string text;
  for (const PlanPart& part : plan.parts) {
    if (part.tier == tier) text += row("  " + part.name, part.size_bytes);
  }
  if (text.empty()) return "";
  return std::string(name(tier)) + "\n" + text + row("sum", plan.peak_bytes(tier));
}

std::string micro_batches_text(const BatchLimits& limits) {
  return std::to_string(limits.micro_batch_count) + " micro-batch(es) of " + std::to_string(limits.rows) +
         " row(s), at most " + std::to_string(limits.tokens) + " tokens, the longest row " +
         std::to_string(limits.tokens_per_row);
}

// The tape's last entry is the final norm's input: no layer, and nothing to compute again.
size_t layer_count(const Plan& plan) {
  return plan.recomputed.empty() ? 0 : plan.recomputed.size() - 1;
}

int64_t recomputed_layers(const Plan& plan) {
  const auto begin = plan.recomputed.begin();
  return std::count(begin, begin + static_cast<ptrdiff_t>(layer_count(plan)), true);
}

std::string recomputed_text(const Plan& plan) {
  return std::to_string(recomputed_layers(plan)) + " of " + std::to_string(layer_count(plan)) + " layers";
}

}  // namespace

std::string plan_table(const Plan& plan, const TrainerOptions& options) {
  std::string text = "A step: " + micro_batches_text(options.limits) + ", computed in " +
                     std::string(name(options.compute_dtype)) + " (kernels " + gpu::host::kernel_table_id() +
                     ")\n";
  for (const Tier tier : kTiers) text += tier_table(plan, tier);
  return text + "moves a step\n" + row("  weights to the device", plan.copy_in_bytes_per_walk) +
         row("  gradients to the host", plan.copy_out_bytes_per_walk) +
         "recomputed in backward: " + recomputed_text(plan) +
         "; fetched ahead: " + std::to_string(plan.prefetch_distance) + " block(s)\n";
}

std::string plan_summary(const Plan& plan) {
  return "Plan: device peak " + format_bytes(plan.peak_bytes(Tier::device)) + ", host peak " +
         format_bytes(plan.peak_bytes(Tier::host)) + ", recomputed " + recomputed_text(plan) +
         ", a step moves " + format_bytes(plan.copy_in_bytes_per_walk) + " in and " +
         format_bytes(plan.copy_out_bytes_per_walk) + " out";
}

nlohmann::ordered_json plan_json(const Plan& plan, const TrainerOptions& options) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const PlanPart& part : plan.parts) {
    parts.push_back({{"tier", name(part.tier)}, {"name", part.name}, {"bytes", part.size_bytes}});
  }
  nlohmann::ordered_json peaks;
  for (const Tier tier : kTiers) peaks[std::string(name(tier))] = plan.peak_bytes(tier);
  const BatchLimits& limits = options.limits;
  return {{"compute_dtype", name(options.compute_dtype)},
          {"kernel_table", gpu::host::kernel_table_id()},
          {"micro_batches", limits.micro_batch_count},
          {"rows", limits.rows},
          {"tokens", limits.tokens},
          {"tokens_per_row", limits.tokens_per_row},
          {"peak_bytes", peaks},
          {"parts", parts},
          {"moves_per_step",
           {{"in_bytes", plan.copy_in_bytes_per_walk}, {"out_bytes", plan.copy_out_bytes_per_walk}}},
          {"recomputed_layers", recomputed_layers(plan)},
          {"layers", layer_count(plan)},
          {"prefetch_distance", plan.prefetch_distance}};
}

}  // namespace sluice::finetune
