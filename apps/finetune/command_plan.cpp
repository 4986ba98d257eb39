#include <iostream>

#include "apps/finetune/commands.h"
#include "apps/finetune/model/hf_writer.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/plan_alternatives.h"
#include "apps/finetune/plan_report.h"
#include "apps/finetune/train_setup.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

void check_output(const TrainOptions& options, const OpenModel& model) {
  if (options.output.empty()) return;
  check_output_folder(options.output);
  check_room_for(model.folder, options.output, options.export_dtype);
}

void print_json(const nlohmann::ordered_json& json) {
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

void print(const PlanOptions& options, const Plan& plan, const TrainSetup& setup, const std::string& doubt) {
  if (options.json) {
    nlohmann::ordered_json json = plan_json(plan, setup.trainer);
    json["verdict"] = "go";
    if (!doubt.empty()) json["warning"] = doubt;
    print_json(json);
    return;
  }
  std::cout << plan_table(plan, setup.trainer) << "verdict: go" << (doubt.empty() ? "" : ", but ") << doubt
            << "\n";
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", or ") + text;
  return all;
}

// A refusal is what the plan has to say, and no fault: it goes where the plan would have gone.
int refuse(const PlanOptions& options, const TrainSetup& setup, const Error& error) {
  const auto* refusal = dynamic_cast<const PlanRefusal*>(&error);
  const std::vector<std::string> would_go =
      refusal != nullptr ? settings_that_would_go(setup, *refusal) : std::vector<std::string>();
  if (options.json) {
    nlohmann::ordered_json json{{"verdict", "no-go"}, {"reason", error.what()}};
    if (refusal != nullptr) {
      json["least_" + std::string(name(refusal->tier())) + "_bytes"] = refusal->least_bytes();
      json["nearest_setting"] = would_go.front();
      json["would_go"] = would_go;
    }
    print_json(json);
  } else {
    std::cout << "verdict: no-go\nreason: " << error.what() << "\n";
    if (!would_go.empty()) std::cout << "would go: " << joined(would_go) << "\n";
  }
  return exit_code(error.kind());
}

}  // namespace

int run_command(const PlanOptions& options) {
  const TrainSetup setup = set_up_training(options.train);
  for (const std::string& warning : setup.warnings) std::cerr << "warning: " << warning << "\n";
  try {
    check_output(options.train, setup.model);
    const Plan plan = Trainer::plan(*setup.runtime.device, setup.model.config, setup.trainer);
    print(options, plan, setup, check_machine_memory(plan));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::resource) throw;
    return refuse(options, setup, error);
  }
  return 0;
}

}  // namespace sluice::finetune
