#include <iostream>

#include "apps/finetune/commands.h"
#include "apps/finetune/model/hf_writer.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/plan_report.h"
#include "apps/finetune/train_setup.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

void check_output(const TrainOptions& options, const OpenModel& model) {
  if (options.output.empty()) return;
  check_output_folder(options.output);
  check_room_for(model.folder, options.output);
}

void print(const PlanOptions& options, const Plan& plan, const TrainSetup& setup, const std::string& doubt) {
  if (options.json) {
    nlohmann::ordered_json json = plan_json(plan, setup.trainer);
    json["verdict"] = "go";
    if (!doubt.empty()) json["warning"] = doubt;
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  std::cout << plan_table(plan, setup.trainer) << "verdict: go" << (doubt.empty() ? "" : ", but ") << doubt
            << "\n";
}

// The verdict for those who read standard output; the Error goes on to main.
void print_refusal(const PlanOptions& options, const Error& error) {
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"verdict", "no-go"}, {"reason", error.what()}}.dump(
                     2, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << "verdict: no-go\n";
  }
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
    if (error.kind() == ErrorKind::resource) print_refusal(options, error);
    throw;
  }
  return 0;
}

}  // namespace sluice::finetune
