#include <iostream>

#include "apps/common/interrupt.h"
#include "apps/finetune/checkpoint.h"
#include "apps/finetune/commands.h"
#include "apps/finetune/disk_use.h"
#include "apps/finetune/io_guard.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/plan_report.h"
#include "apps/finetune/report.h"
#include "apps/finetune/run_record.h"
#include "apps/finetune/run_trace.h"
#include "apps/finetune/train_setup.h"
#include "apps/finetune/training_run.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

int64_t trainable_parameters(const ModelSpec& model) {
  int64_t count = 0;
  for (const TensorSpec& tensor : model.tensors) count += tensor.trainable ? tensor.rows * tensor.cols : 0;
  return count;
}

void introduce(const TrainOptions& options, const TrainSetup& setup, const Plan& plan, const DiskUse& use) {
  const ModelSpec model = make_decoder_spec(setup.model.config).model;
  std::cerr << training_banner(options, {.example_count = setup.data->size(),
                                         .total_steps = setup.total_steps,
                                         .steps_per_epoch = setup.steps_per_epoch,
                                         .trainable_parameters = trainable_parameters(model)})
            << plan_summary(plan) << "\n";
  if (const std::string drives = disk_summary(use); !drives.empty()) std::cerr << drives << "\n";
  std::cerr << setup.first_example;
  for (const std::string& warning : setup.warnings) std::cerr << "warning: " << warning << "\n";
}

// What a run goes on from, compared with what this command asks for.
std::optional<RunProgress> find_progress(const TrainOptions& options, const nlohmann::ordered_json& settings,
                                         Checkpoint& checkpoint, TrainSetup& setup) {
  if (!options.state.resume) return std::nullopt;
  const Manifest& saved = checkpoint.find_saved();
  refuse_changes(saved.facts.run, settings, options);
  const RunProgress progress = recorded_progress(saved.facts.run);
  if (progress.facts.steps > setup.total_steps || progress.cursor.position >= setup.data->size())
    throw Error(ErrorKind::data, "the saved state in " + checkpoint.folder().string() +
                                     " lies behind the end of its run or its data.");
  if (std::string doubt = checkpoint.check_kernels(); !doubt.empty())
    setup.warnings.push_back(std::move(doubt));
  return progress;
}

void add_warning(std::string warning, TrainSetup& setup) {
  if (!warning.empty()) setup.warnings.push_back(std::move(warning));
}

int interrupted_before_start(const InterruptWatch& watch, const Checkpoint& checkpoint) {
  std::cerr << "Interrupted before the first step. ";
  if (checkpoint.saved_record().is_null()) {
    std::cerr << "There was nothing to save.\n";
  } else {
    std::cerr << "The saved state is as it was.\n";
  }
  return interrupt_exit_code(watch.signal_number());
}

// What is to be seen beside the run is foretold before it, while the machine is idle. Null without --trace.
std::shared_ptr<RunTrace> make_trace(const TrainOptions& options, const TrainSetup& setup, IoGuard& guard) {
  if (!setup.runtime.trace) return nullptr;
  Forecast forecast =
      make_forecast(*setup.runtime.device, setup, {.gpu = {}, .spill_dirs = options.state.spill_dirs});
  auto trace = std::make_shared<RunTrace>(options.trace, setup.runtime.trace, std::move(forecast));
  guard.set_last_words([trace] { trace->write(); });
  return trace;
}

}  // namespace

int run_command(const TrainOptions& options) {
  const RunKind kind = options.state.resume ? RunKind::resumed : RunKind::new_run;
  if (!options.trace.empty()) check_trace_path(options.trace);
  IoGuard guard(options.state.io_timeout);
  Checkpoint checkpoint(options.output, options.state, guard.observers());
  checkpoint.refuse_second_run();
  check_output_folder(options.output, kind);
  if (options.state.resume) (void)checkpoint.find_saved();

  TrainSetup setup = set_up_training(options);
  const nlohmann::ordered_json settings = run_settings(options, setup);
  const std::optional<RunProgress> resumed = find_progress(options, settings, checkpoint, setup);
  const Plan plan = Trainer::plan(*setup.runtime.device, setup.model.config, setup.trainer);
  DiskUse use = disk_use(options, setup, plan);
  const bool moved = resumed && checkpoint.drives_changed();
  if (resumed) use.go_on_after(resumed->facts.steps, resumed->facts.written_bytes, moved);
  add_warning(check_disk(options, use, resumed && !moved), setup);
  add_warning(check_machine_memory(plan), setup);
  introduce(options, setup, plan, use);
  guard.trace_into(setup.runtime.trace.get());
  const std::shared_ptr<RunTrace> trace = make_trace(options, setup, guard);

  const PeakMemory memory;
  const InterruptWatch watch;
  checkpoint.take_output();
  check_output_folder(options.output, kind);  // nobody else writes there from here on
  if (!checkpoint.open(setup.model.config, setup.trainer, watch))
    return interrupted_before_start(watch, checkpoint);
  const TraceThread traced(setup.runtime.trace.get(), "trainer", trace_order::kTrainer);
  Trainer trainer(*setup.runtime.device, *setup.runtime.pool, setup.model.config, setup.trainer);
  if (resumed) {
    trainer.engine().restore();
    std::cerr << "Going on after step " << resumed->facts.steps << " of " << setup.total_steps << "\n";
  } else {
    load_weights(setup.model.folder, trainer.engine().store());
  }
  make_output_folder(options.output);
  try {
    const int code =
        TrainingRun({options, setup, trainer, checkpoint, memory, watch, guard}, settings, resumed).run();
    if (trace) trace->write();
    return code;
  } catch (...) {
    if (trace) trace->write();
    throw;
  }
}

}  // namespace sluice::finetune
