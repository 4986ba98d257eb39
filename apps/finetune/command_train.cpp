#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "apps/common/interrupt.h"
#include "apps/finetune/commands.h"
#include "apps/finetune/events.h"
#include "apps/finetune/model/hf_writer.h"
#include "apps/finetune/output_folder.h"
#include "apps/finetune/plan_report.h"
#include "apps/finetune/progress.h"
#include "apps/finetune/report.h"
#include "apps/finetune/train_events.h"
#include "apps/finetune/train_setup.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t trainable_parameters(const ModelSpec& model) {
  int64_t count = 0;
  for (const TensorSpec& tensor : model.tensors) count += tensor.trainable ? tensor.rows * tensor.cols : 0;
  return count;
}

// The steps of a run, their diary and their progress on the screen.
class TrainingRun {
 public:
  TrainingRun(const TrainOptions& options, const TrainSetup& setup, Trainer& trainer,
              const PeakMemory& memory)
      : options_(options),
        setup_(setup),
        trainer_(trainer),
        memory_(memory),
        events_(std::filesystem::path(options.output) / kEventsName),
        progress_(std::cerr, progress_style(), setup.total_steps, options.logging_steps) {
    events_.write(start_event(options, setup, trainer.engine().plan()));
  }

  int run() {
    const InterruptWatch watch;
    try {
      for (DataCursor cursor; facts_.steps < setup_.total_steps && watch.signal_number() == 0;)
        cursor = step(cursor);
      progress_.finish();
      return facts_.steps < setup_.total_steps ? stop(watch.signal_number()) : finish();
    } catch (const std::exception& error) {
      progress_.finish();
      events_.write({{"event", "error"}, {"step", facts_.steps + 1}, {"message", error.what()}});
      throw;
    }
  }

 private:
  DataCursor step(DataCursor cursor) {
    StepWindow window = setup_.batcher->window(cursor);
    const DataCursor next = window.next;
    const Clock::time_point begin = Clock::now();
    StepFacts facts{.step = facts_.steps + 1, .learning_rate = schedule_.at(facts_.steps)};
    facts.epoch = static_cast<double>(facts.step) / static_cast<double>(setup_.steps_per_epoch);
    facts.report = trainer_.step(window.micro_batches, facts.learning_rate);
    facts.seconds = seconds_since(begin);
    facts.peak = peak();
    refuse_bad_loss(facts);
    count(facts);
    events_.write(step_event(facts));
    progress_.show({.step = facts.step,
                    .epoch = facts.epoch,
                    .loss = facts.report.loss,
                    .gradient_norm = facts.report.gradient_norm,
                    .learning_rate = facts.learning_rate,
                    .tokens_per_second = facts.tokens_per_second(),
                    .skipped = facts.report.skipped});
    return next;
  }

  void refuse_bad_loss(const StepFacts& facts) const {
    if (facts.report.bad_row.empty()) return;
    throw Error(
        ErrorKind::diverged,
        "the loss of step " + std::to_string(facts.step) + " is not a finite number, first in " +
            facts.report.bad_row +
            ": training cannot go on, and nothing was written but the event log. Try a lower --learning_rate "
            "or "
            "some --warmup_steps, and check that the model's own weights are finite (finetune eval).");
  }

  void count(const StepFacts& facts) {
    ++facts_.steps;
    facts_.skipped_steps += facts.report.skipped ? 1 : 0;
    facts_.loss = facts.report.loss;
    facts_.train_loss += (facts.report.loss - facts_.train_loss) / static_cast<double>(facts_.steps);
    facts_.tokens += facts.report.token_count;
    facts_.label_tokens += facts.report.label_count;
    facts_.peak = facts.peak;
  }

  PeakBytes peak() const {
    return {.device = setup_.runtime.device->used_bytes(),
            .host = trainer_.engine().plan().peak_bytes(Tier::host),
            .process = memory_.bytes()};
  }

  int stop(int signal_number) {
    trainer_.engine().wait();
    events_.write({{"event", "interrupted"}, {"step", facts_.steps}, {"signal", signal_number}});
    std::cerr << "Interrupted after step " << facts_.steps << " of " << setup_.total_steps
              << ". This version cannot resume a run, so no weights were written; " << options_.output
              << " holds the event log only.\n";
    return interrupt_exit_code(signal_number);
  }

  int finish() {
    char hash[20];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(trainer_.engine().state_hash()));
    facts_.state_hash = hash;
    facts_.seconds = seconds_since(begin_);  // the last update included
    facts_.exported =
        save_weights(setup_.model.folder, trainer_.engine().store(), options_.output, options_.export_dtype);
    facts_.peak = peak();
    nlohmann::ordered_json end = end_event(facts_, options_.output);
    events_.write(end);
    std::cerr << "Trained " << facts_.steps << " steps, " << facts_.tokens << " tokens in "
              << duration_text(facts_.seconds) << "; train_loss " << facts_.train_loss << ". The model is in "
              << options_.output << "\n";
    if (const std::string warning = export_warning(facts_.exported); !warning.empty())
      std::cerr << "warning: " << warning << "\n";
    if (facts_.skipped_steps > 0) {
      std::cerr << "warning: " << facts_.skipped_steps
                << " step(s) were skipped, as their gradient norm was not finite\n";
    }
    end.erase("event");
    if (options_.json) {
      std::cout << end.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    } else {
      std::cout << "state_hash " << facts_.state_hash << "\n";
    }
    return 0;
  }

  const TrainOptions& options_;
  const TrainSetup& setup_;
  Trainer& trainer_;
  const PeakMemory& memory_;
  const LearningRate schedule_ = learning_rate_of(options_, setup_.total_steps);
  EventLog events_;
  Progress progress_;
  RunFacts facts_;
  const Clock::time_point begin_ = Clock::now();
};

void introduce(const TrainOptions& options, const TrainSetup& setup, const Plan& plan,
               const ModelSpec& model) {
  std::cerr << training_banner(options, {.example_count = setup.data->size(),
                                         .total_steps = setup.total_steps,
                                         .steps_per_epoch = setup.steps_per_epoch,
                                         .trainable_parameters = trainable_parameters(model)})
            << plan_summary(plan) << "\n"
            << setup.first_example;
  for (const std::string& warning : setup.warnings) std::cerr << "warning: " << warning << "\n";
}

}  // namespace

int run_command(const TrainOptions& options) {
  check_output_folder(options.output);
  TrainSetup setup = set_up_training(options);
  check_room_for(setup.model.folder, options.output, options.export_dtype);
  const Plan plan = Trainer::plan(*setup.runtime.device, setup.model.config, setup.trainer);
  if (std::string doubt = check_machine_memory(plan); !doubt.empty())
    setup.warnings.push_back(std::move(doubt));
  introduce(options, setup, plan, make_decoder_spec(setup.model.config).model);

  const PeakMemory memory;
  Trainer trainer(*setup.runtime.device, *setup.runtime.pool, setup.model.config, setup.trainer);
  load_weights(setup.model.folder, trainer.engine().store());
  make_output_folder(options.output);
  return TrainingRun(options, setup, trainer, memory).run();
}

}  // namespace sluice::finetune
