#include "apps/finetune/training_run.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>

#include "apps/finetune/report.h"
#include "apps/finetune/weights.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string hash_text(uint64_t hash) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

TrainingRun::TrainingRun(const Parts& parts, nlohmann::ordered_json settings,
                         const std::optional<RunProgress>& resumed)
    : parts_(parts),
      settings_(std::move(settings)),
      schedule_(learning_rate_of(parts.options, parts.setup.total_steps)),
      progress_(resumed.value_or(RunProgress{})),
      saved_step_(progress_.facts.steps),
      events_(open_events(resumed)),
      screen_(std::cerr, progress_style(), parts.setup.total_steps, parts.options.logging_steps,
              progress_.facts.steps + 1),
      seconds_before_(progress_.facts.seconds) {
  const Plan& plan = parts.trainer.engine().plan();
  events_.write(
      resumed ? resume_event(parts.options, parts.setup, plan, progress_.facts.steps, events_.dropped_steps())
              : start_event(parts.options, parts.setup, plan));
}

EventLog TrainingRun::open_events(const std::optional<RunProgress>& resumed) const {
  const std::filesystem::path path = std::filesystem::path(parts_.options.output) / kEventsName;
  return resumed ? EventLog(path, resumed->facts.steps) : EventLog(path);
}

int TrainingRun::run() {
  try {
    train();
    screen_.finish();
    return progress_.facts.steps < parts_.setup.total_steps ? stop() : finish();
  } catch (const std::exception& error) {
    screen_.finish();
    fail(error.what());
    throw;
  }
}

// 0: go on.
int TrainingRun::stop_signal() const {
  const bool asked = parts_.options.state.stop_after == progress_.facts.steps;
  return asked ? SIGTERM : parts_.watch.signal_number();
}

void TrainingRun::train() {
  const int64_t interval = parts_.options.state.save_interval();
  while (progress_.facts.steps < parts_.setup.total_steps && stop_signal() == 0) {
    step();
    const int64_t steps = progress_.facts.steps;
    // What a save meets shows in a later step, or at the end.
    if (interval > 0 && steps % interval == 0 && steps < parts_.setup.total_steps) (void)save();
  }
}

void TrainingRun::step() {
  RunFacts& run = progress_.facts;
  StepWindow window = parts_.setup.batcher->window(progress_.cursor);
  const Clock::time_point begin = Clock::now();
  StepFacts facts{.step = run.steps + 1, .learning_rate = schedule_.at(run.steps)};
  facts.epoch = static_cast<double>(facts.step) / static_cast<double>(parts_.setup.steps_per_epoch);
  facts.report = parts_.trainer.step(window.micro_batches, facts.learning_rate);
  facts.seconds = seconds_since(begin);
  facts.peak = peak();
  refuse_bad_loss(facts);
  count(facts);
  progress_.cursor = window.next;
  events_.write(step_event(facts));
  screen_.show({.step = facts.step,
                .epoch = facts.epoch,
                .loss = facts.report.loss,
                .gradient_norm = facts.report.gradient_norm,
                .learning_rate = facts.learning_rate,
                .tokens_per_second = facts.tokens_per_second(),
                .skipped = facts.report.skipped});
}

void TrainingRun::refuse_bad_loss(const StepFacts& facts) const {
  if (facts.report.bad_row.empty()) return;
  throw Error(ErrorKind::diverged,
              "the loss of step " + std::to_string(facts.step) + " is not a finite number, first in " +
                  facts.report.bad_row +
                  ": training cannot go on, and no weights were written. Try a lower --learning_rate or some "
                  "--warmup_steps, and check that the model's own weights are finite (finetune eval).");
}

void TrainingRun::count(const StepFacts& facts) {
  RunFacts& run = progress_.facts;
  ++run.steps;
  run.skipped_steps += facts.report.skipped ? 1 : 0;
  run.loss = facts.report.loss;
  run.train_loss += (facts.report.loss - run.train_loss) / static_cast<double>(run.steps);
  run.tokens += facts.report.token_count;
  run.label_tokens += facts.report.label_count;
  run.peak = facts.peak;
}

PeakBytes TrainingRun::peak() const {
  return {.device = parts_.setup.runtime.device->used_bytes(),
          .host = parts_.trainer.engine().plan().peak_bytes(Tier::host),
          .process = parts_.memory.bytes()};
}

double TrainingRun::seconds() const {
  return seconds_before_ + seconds_since(begin_);
}

gpu::Event TrainingRun::save() {
  progress_.facts.seconds = seconds();
  saved_step_ = progress_.facts.steps;
  return parts_.checkpoint.save(parts_.trainer.engine(), run_record(settings_, progress_));
}

void TrainingRun::save_now() {
  if (saved_step_ != progress_.facts.steps) save().wait();
  parts_.trainer.engine().wait();
}

int TrainingRun::stop() {
  const int64_t steps = progress_.facts.steps;
  const int signal_number = stop_signal();
  if (steps > 0 && saved_step_ != steps) std::cerr << "Saving the state after step " << steps << "\n";
  save_now();
  events_.write({{"event", "interrupted"}, {"step", steps}, {"signal", signal_number}});
  std::cerr << "Interrupted after step " << steps << " of " << parts_.setup.total_steps << ". ";
  if (steps > 0) {
    std::cerr << "The state is saved in " << parts_.checkpoint.folder().string()
              << ": the same command with --resume goes on from there.\n";
  } else {
    std::cerr << "There was nothing to save.\n";
  }
  return interrupt_exit_code(signal_number);
}

int TrainingRun::finish() {
  RunFacts& run = progress_.facts;
  // Should the result not find room, the run need not be repeated.
  if (saved_step_ > 0 || parts_.options.state.spills()) save_now();
  run.state_hash = hash_text(parts_.trainer.engine().state_hash());
  run.seconds = seconds();  // the last update included
  run.exported = save_weights(parts_.setup.model.folder, parts_.trainer.engine().store(),
                              parts_.options.output, parts_.options.export_dtype);
  parts_.checkpoint.discard();
  run.peak = peak();
  events_.write(end_event(run, parts_.options.output));
  tell_result();
  return 0;
}

void TrainingRun::tell_result() const {
  const RunFacts& run = progress_.facts;
  std::cerr << "Trained " << run.steps << " steps, " << run.tokens << " tokens in "
            << duration_text(run.seconds) << "; train_loss " << run.train_loss << ". The model is in "
            << parts_.options.output << "\n";
  if (const std::string warning = export_warning(run.exported); !warning.empty())
    std::cerr << "warning: " << warning << "\n";
  if (run.skipped_steps > 0) {
    std::cerr << "warning: " << run.skipped_steps
              << " step(s) were skipped, as their gradient norm was not finite\n";
  }
  nlohmann::ordered_json end = end_event(run, parts_.options.output);
  end.erase("event");
  if (parts_.options.json) {
    std::cout << to_text(end) << "\n";
  } else {
    std::cout << "state_hash " << run.state_hash << "\n";
  }
}

// The diary gets the message; the screen, what of the run can still be had.
void TrainingRun::fail(const char* message) {
  events_.write({{"event", "error"}, {"step", progress_.facts.steps + 1}, {"message", message}});
  try {
    parts_.trainer.engine().wait();  // a save may be under way
  } catch (const std::exception&) {
    // What it met is, or follows from, what is thrown already.
  }
  try {
    const nlohmann::json record = parts_.checkpoint.saved_record();
    if (record.is_null()) return;
    std::cerr << "The state after step " << recorded_progress(record).facts.steps << " is saved in "
              << parts_.checkpoint.folder().string()
              << ": once the cause is gone, the same command with --resume goes on from there.\n";
  } catch (const std::exception& error) {
    std::cerr << "warning: the saved state cannot be read: " << error.what() << "\n";
  }
}

}  // namespace sluice::finetune
