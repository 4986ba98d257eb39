#include <iostream>

#include "apps/finetune/commands.h"
#include "apps/finetune/disk_use.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/plan_alternatives.h"
#include "apps/finetune/plan_report.h"
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

void print(const PlanOptions& options, const Plan& plan, const DiskUse& use, const TrainSetup& setup,
           const std::string& doubt) {
  if (options.json) {
    nlohmann::ordered_json json = plan_json(plan, setup.trainer);
    json["drives"] = disk_json(use);
    json["verdict"] = "go";
    if (!doubt.empty()) json["warning"] = doubt;
    print_json(json);
    return;
  }
  std::cout << plan_table(plan, setup.trainer) << disk_table(use) << "verdict: go"
            << (doubt.empty() ? "" : ", but ") << doubt << "\n";
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
    check_output(options.train);
    const Plan plan = Trainer::plan(*setup.runtime.device, setup.model.config, setup.trainer);
    const DiskUse use = disk_use(options.train, setup, plan);
    const std::string no_room = check_disk(options.train, use, options.train.state.resume);
    const std::string no_memory = check_machine_memory(plan);
    print(options, plan, use, setup,
          no_memory.empty() || no_room.empty() ? no_memory + no_room : no_memory + " And " + no_room);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::resource) throw;
    return refuse(options, setup, error);
  }
  return 0;
}

}  // namespace sluice::finetune
