#include <iostream>

#include "apps/finetune/commands.h"
#include "apps/finetune/disk_use.h"
#include "apps/finetune/outlook.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/plan_alternatives.h"
#include "apps/finetune/plan_report.h"
#include "apps/finetune/run_trace.h"
#include "apps/finetune/state_report.h"
#include "apps/finetune/train_setup.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

void check_output(const TrainOptions& options) {
  if (options.output.empty()) return;
  check_output_folder(options.output, options.state.resume ? RunKind::resumed : RunKind::new_run);
}

void print_json(const nlohmann::ordered_json& json) {
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void print(const PlanOptions& options, const Plan& plan, const TrainSetup& setup, const Outlook& outlook) {
  const bool go = all_go(outlook.verdicts);
  const double step_seconds = outlook.forecast.step.step_seconds;
  if (options.json) {
    nlohmann::ordered_json json = plan_json(plan, setup.trainer);
    json["states"] = state_format_json(setup);
    json["drives"] = disk_json(outlook.disk);
    json["prediction"] = forecast_json(outlook.forecast);
    json["prediction"]["written_bytes_per_day"] = outlook.disk.written_per_day(step_seconds);
    json["verdicts"] = verdicts_json(outlook.verdicts);
    json["verdict"] = go ? "go" : "no-go";
    print_json(json);
    return;
  }
  std::cout << plan_table(plan, setup.trainer) << state_table(setup) << disk_table(outlook.disk, step_seconds)
            << forecast_table(outlook.forecast) << verdict_table(outlook.verdicts)
            << "verdict: " << (go ? "go" : "no-go") << "\n";
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", or ") + text;
  return all;
}

// A refused plan is a no-go for memory; the rest is judged with the limits raised to what would go.
std::vector<Verdict> verdicts_of_refused(const PlanOptions& options, TrainSetup& setup,
                                         const PlanDevice& device, const PlanRefusal& refusal,
                                         const std::vector<std::string>& would_go) {
  std::vector<Verdict> verdicts{
      {.about = "memory", .go = false, .text = refusal.what(), .would_go = joined(would_go)}};
  const std::optional<RaisedPlan> raised = raise_limits(device.device(), setup, refusal);
  if (!raised) return verdicts;
  for (Verdict& verdict : look_ahead(options, setup, device, raised->plan).verdicts) {
    if (verdict.about == verdicts[0].about) continue;
    verdict.text = "with " + raised->settings + ": " + verdict.text;
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

// A refusal is what the plan has to say, and no fault: it goes where the plan would have gone.
int refuse(const PlanOptions& options, TrainSetup& setup, const PlanDevice& device, const Error& error) {
  const auto* refusal = dynamic_cast<const PlanRefusal*>(&error);
  std::vector<std::string> would_go;
  std::vector<Verdict> verdicts;
  if (refusal != nullptr) {
    would_go = settings_that_would_go(setup, *refusal);
    verdicts = verdicts_of_refused(options, setup, device, *refusal, would_go);
  }
  if (options.json) {
    nlohmann::ordered_json json{{"verdict", "no-go"}, {"reason", error.what()}};
    if (refusal != nullptr) {
      json["least_" + std::string(name(refusal->tier())) + "_bytes"] = refusal->least_bytes();
      json["nearest_setting"] = would_go.front();
      json["would_go"] = would_go;
      json["verdicts"] = verdicts_json(verdicts);
    }
    print_json(json);
  } else {
    std::cout << verdict_table(verdicts) << "verdict: no-go\nreason: " << error.what() << "\n";
    if (!would_go.empty()) std::cout << "would go: " << joined(would_go) << "\n";
  }
  return exit_code(error.kind());
}

}  // namespace

int run_command(const PlanOptions& options) {
  if (!options.train.trace.empty()) check_trace_path(options.train.trace);
  TrainSetup setup = set_up_training(options.train, WeightFiles::optional);
  const PlanDevice device(options, setup);
  for (const std::string& warning : setup.warnings) std::cerr << "warning: " << warning << "\n";
  try {
    check_output(options.train);
    const Plan plan = Trainer::plan(device.device(), setup.model.config, setup.trainer);
    const Outlook outlook = look_ahead(options, setup, device, plan);
    print(options, plan, setup, outlook);
    if (!options.train.trace.empty()) write_predicted_trace(options.train.trace, outlook.forecast);
    return all_go(outlook.verdicts) ? 0 : exit_code(ErrorKind::resource);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::resource) throw;
    return refuse(options, setup, device, error);
  }
}

}  // namespace sluice::finetune
