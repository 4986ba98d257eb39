#include "apps/finetune/training_run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <utility>

#include "apps/finetune/disk_use.h"
#include "apps/finetune/report.h"
#include "apps/finetune/weights.h"

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

// Of the files that the export wrote.
uint64_t size_of_result(const std::filesystem::path& output) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(output))
    if (entry.is_regular_file() && entry.path().filename() != kEventsName) bytes += entry.file_size();
  return bytes;
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
      first_step_(progress_.facts.steps),
      saved_step_(progress_.facts.steps),
      events_(open_events(resumed)),
      screen_(std::cerr, progress_style(), parts.setup.total_steps, parts.options.logging_steps,
              progress_.facts.steps + 1),
      written_before_(std::max(progress_.facts.written_bytes, events_->written_bytes())),
      planned_save_bytes_(planned_use().written_per_save),
      budget_(planned_use(), parts.options.state.ssd_write_limit, parts.checkpoint.written_bytes()),
      seconds_before_(progress_.facts.seconds) {
  const Plan& plan = parts.trainer.engine().plan();
  parts.guard.set_log(events_);
  nlohmann::ordered_json begun = resumed ? resume_event(parts.options, parts.setup, plan,
                                                        progress_.facts.steps, events_->dropped_steps())
                                         : start_event(parts.options, parts.setup, plan);
  begun["written_bytes"] = written_bytes();
  events_->write(begun);
}

std::shared_ptr<EventLog> TrainingRun::open_events(const std::optional<RunProgress>& resumed) const {
  const std::filesystem::path path = std::filesystem::path(parts_.options.output) / kEventsName;
  return resumed ? std::make_shared<EventLog>(path, resumed->facts.steps) : std::make_shared<EventLog>(path);
}

int TrainingRun::run() {
  int code = 0;
  try {
    train();
    screen_.finish();
    code = stop_signal() != 0 && progress_.facts.steps < parts_.setup.total_steps ? stop()
           : may_go_on()                                                          ? finish()
                                                                                  : stop_at_write_limit();
  } catch (const std::exception& error) {
    screen_.finish();
    fail(error);
    throw;
  }
  refuse_unsaved_end();
  return code;
}

// 0: go on.
int TrainingRun::stop_signal() const {
  const bool asked = parts_.options.state.stop_after == progress_.facts.steps;
  return asked ? SIGTERM : parts_.watch.signal_number();
}

void TrainingRun::train() {
  const int64_t interval = parts_.options.state.save_interval();
  while (progress_.facts.steps < parts_.setup.total_steps && stop_signal() == 0 && may_go_on()) {
    step();
    settle_save();  // has ended by now
    const int64_t steps = progress_.facts.steps;
    if (interval > 0 && steps % interval == 0 && steps < parts_.setup.total_steps) begin_save();
  }
}

void TrainingRun::step() {
  RunFacts& run = progress_.facts;
  this_thread_label().step = run.steps + 1;
  if (Trace* trace = parts_.setup.runtime.trace.get()) trace->begin_step(run.steps + 1);
  StepWindow window = parts_.setup.batcher->window(progress_.cursor);
  const Clock::time_point begin = Clock::now();
  StepFacts facts{.step = run.steps + 1, .learning_rate = schedule_.at(run.steps)};
  facts.epoch = static_cast<double>(facts.step) / static_cast<double>(parts_.setup.steps_per_epoch);
  facts.report = parts_.trainer.step(window.micro_batches, facts.learning_rate);
  facts.seconds = seconds_since(begin);
  facts.peak = peak();
  facts.written_bytes = written_bytes();
  refuse_bad_loss(facts);
  count(facts);
  progress_.cursor = window.next;
  events_->write(step_event(facts));
  screen_.show({.step = facts.step,
                .epoch = facts.epoch,
                .loss = facts.report.loss,
                .gradient_norm = facts.report.gradient_norm,
                .learning_rate = facts.learning_rate,
                .tokens_per_second = facts.tokens_per_second(),
                .skipped = facts.report.skipped});
  refuse_more_skips();
}

void TrainingRun::refuse_bad_loss(const StepFacts& facts) const {
  if (facts.report.bad_row.empty()) return;
  throw Error(ErrorKind::diverged,
              "the loss of step " + std::to_string(facts.step) + " is not a finite number, first in " +
                  facts.report.bad_row +
                  ": training cannot go on, and no weights were written. Try a lower --learning_rate or some "
                  "--warmup_steps, and check that the model's own weights are finite (finetune eval).");
}

void TrainingRun::refuse_more_skips() const {
  const int64_t skipped = progress_.skipped_in_a_row;
  if (skipped <= parts_.options.max_skipped_steps) return;
  throw Error(ErrorKind::diverged,
              "the norm of the gradients was not a finite number in " + std::to_string(skipped) +
                  " step(s) in a row, over --max_skipped_steps " +
                  std::to_string(parts_.options.max_skipped_steps) +
                  ": each was skipped, so training does not move, and no result was written. Try a lower "
                  "--learning_rate or some --warmup_steps, or --gradient_dtype fp32, and look for the rows "
                  "of these steps.");
}

void TrainingRun::count(const StepFacts& facts) {
  RunFacts& run = progress_.facts;
  ++run.steps;
  run.skipped_steps += facts.report.skipped ? 1 : 0;
  progress_.skipped_in_a_row = facts.report.skipped ? progress_.skipped_in_a_row + 1 : 0;
  run.loss = facts.report.loss;
  run.train_loss += (facts.report.loss - run.train_loss) / static_cast<double>(run.steps);
  run.tokens += facts.report.token_count;
  run.label_tokens += facts.report.label_count;
  run.peak = facts.peak;
  budget_.count_step();
}

PeakBytes TrainingRun::peak() const {
  return {.device = parts_.setup.runtime.device->used_bytes(),
          .host = parts_.trainer.engine().plan().peak_bytes(Tier::host),
          .process = parts_.memory.bytes()};
}

DiskUse TrainingRun::planned_use() const {
  DiskUse use = disk_use(parts_.options, parts_.setup, parts_.trainer.engine().plan());
  use.go_on_after(first_step_, written_before_, false);
  return use;
}

uint64_t TrainingRun::written_bytes() const {
  return written_before_ + parts_.checkpoint.written_bytes();
}

// To the next step, or after the last one to the result.
bool TrainingRun::may_go_on() const {
  const int64_t steps = progress_.facts.steps;
  if (steps < parts_.setup.total_steps) return budget_.allows_step(steps, written_bytes());
  return budget_.allows_result(!saves_at_end() || saved_step_ == steps, written_bytes());
}

double TrainingRun::seconds() const {
  return seconds_before_ + seconds_since(begin_);
}

void TrainingRun::begin_save() {
  progress_.facts.seconds = seconds();
  // Before the save, so with the most that it may write.
  progress_.facts.written_bytes = written_bytes() + planned_save_bytes_;
  pending_step_ = progress_.facts.steps;
  budget_.count_save();
  try {
    pending_save_ = parts_.checkpoint.save(parts_.trainer.engine(), run_record(settings_, progress_));
  } catch (const Error& error) {
    tell_failed_save(pending_step_, error);
  }
}

// Waits for the save that is under way, and tells of one that failed.
void TrainingRun::settle_save() {
  if (!pending_save_) return;
  const PendingSave save = *std::exchange(pending_save_, std::nullopt);
  try {
    save.wait();
    saved_step_ = pending_step_;
    parts_.checkpoint.count_manifest();
  } catch (const std::exception& error) {
    tell_failed_save(pending_step_, error);
  }
}

void TrainingRun::tell_failed_save(int64_t step, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  save_error_ = known != nullptr ? *known : Error(ErrorKind::runtime, error.what());
  failed_step_ = step;
  screen_.finish();
  std::cerr << "warning: the state after step " << step << " could not be saved: " << error.what();
  if (saved_step_ > 0) std::cerr << " The one after step " << saved_step_ << " is kept.";
  std::cerr << "\n";
  events_->write({{"event", "save_failed"}, {"step", step}, {"message", error.what()}});
}

// Where it failed in the background, it is tried once more.
void TrainingRun::save_now() {
  const int64_t steps = progress_.facts.steps;
  parts_.trainer.engine().wait();
  settle_save();
  if (saved_step_ == steps) return;
  begin_save();
  settle_save();
}

void TrainingRun::save_before_stop() {
  const int64_t steps = progress_.facts.steps;
  if (steps > 0 && saved_step_ != steps) std::cerr << "Saving the state after step " << steps << "\n";
  save_now();
  if (saved_step_ != steps) throw *save_error_;
}

void TrainingRun::tell_saved_state(const std::string& how) const {
  if (progress_.facts.steps == 0) {
    std::cerr << "There was nothing to save.\n";
    return;
  }
  std::cerr << "The state is saved in " << parts_.checkpoint.folder().string() << ": the same command with "
            << how << " goes on from there.\n";
}

int TrainingRun::stop() {
  const int64_t steps = progress_.facts.steps;
  const int signal_number = stop_signal();
  save_before_stop();
  events_->write({{"event", "interrupted"},
                  {"step", steps},
                  {"signal", signal_number},
                  {"written_bytes", written_bytes()}});
  std::cerr << "Interrupted after step " << steps << " of " << parts_.setup.total_steps << ". ";
  tell_saved_state("--resume");
  return interrupt_exit_code(signal_number);
}

int TrainingRun::stop_at_write_limit() {
  const int64_t steps = progress_.facts.steps;
  const uint64_t limit = *parts_.options.state.ssd_write_limit;
  save_before_stop();
  const uint64_t written = written_bytes();
  events_->write(
      {{"event", "write_limit"}, {"step", steps}, {"written_bytes", written}, {"limit_bytes", limit}});
  std::cerr << "Stopped after step " << steps << " of " << parts_.setup.total_steps
            << ": the run has written " << format_bytes(written) << " to its drives, and "
            << (steps < parts_.setup.total_steps ? "another step" : "the result")
            << " would pass --ssd_write_limit " << format_bytes(limit) << ". ";
  tell_saved_state("--resume and a higher --ssd_write_limit");
  return exit_code(ErrorKind::resource);
}

// Should the result not find room, the run need not be repeated.
bool TrainingRun::saves_at_end() const {
  return saved_step_ > 0 || failed_step_ > 0 || parts_.options.state.spills();
}

int TrainingRun::finish() {
  RunFacts& run = progress_.facts;
  if (saves_at_end()) save_now();
  run.state_hash = hash_text(parts_.trainer.engine().state_hash());
  run.seconds = seconds();  // the last update included
  run.exported = save_weights(parts_.setup.model.folder, parts_.trainer.engine().store(),
                              parts_.options.output, parts_.options.export_dtype);
  parts_.checkpoint.discard();
  run.written_bytes = written_bytes() + size_of_result(parts_.options.output);
  run.peak = peak();
  events_->write(end_event(run, parts_.options.output));
  tell_result();
  return 0;
}

void TrainingRun::refuse_unsaved_end() const {
  if (failed_step_ == 0 || failed_step_ != progress_.facts.steps || saved_step_ == failed_step_) return;
  throw Error(
      save_error_->kind(),
      "the model is in " + parts_.options.output +
          ", whole, but the state after its last step could not be saved before: " + save_error_->what());
}

void TrainingRun::tell_result() const {
  const RunFacts& run = progress_.facts;
  std::cerr << "Trained " << run.steps << " steps, " << run.tokens << " tokens in "
            << duration_text(run.seconds) << "; train_loss " << run.train_loss << "; "
            << format_bytes(run.written_bytes) << " written to drives. The model is in "
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

// Whether the engine may still have the state after the last step that was counted: no update came after it.
// What made a loss that is no number would make it again.
bool TrainingRun::can_save_after(const std::exception& error) const {
  const auto* known = dynamic_cast<const Error*>(&error);
  const int64_t steps = progress_.facts.steps;
  return (known == nullptr || known->kind() != ErrorKind::diverged) && steps > first_step_ &&
         saved_step_ != steps && failed_step_ != steps &&
         parts_.trainer.engine().begun_updates() == steps - first_step_;
}

// The diary gets the message; the screen, what of the run can still be had. Where the error was one of the
// lane that updates and saves, the engine refuses to save.
void TrainingRun::fail(const std::exception& error) {
  settle_save();
  if (can_save_after(error)) {
    std::cerr << "Saving the state after step " << progress_.facts.steps << "\n";
    begin_save();
    settle_save();
  }
  events_->write({{"event", "error"},
                  {"step", progress_.facts.steps + 1},
                  {"written_bytes", written_bytes()},
                  {"message", error.what()}});
  try {
    const nlohmann::json record = parts_.checkpoint.saved_record();
    if (record.is_null()) {
      if (progress_.facts.steps > 0) std::cerr << "Nothing of this run is saved.\n";
      return;
    }
    std::cerr << "The state after step " << recorded_progress(record).facts.steps << " is saved in "
              << parts_.checkpoint.folder().string()
              << ": once the cause is gone, the same command with --resume goes on from there.\n";
  } catch (const std::exception& unreadable) {
    std::cerr << "warning: the saved state cannot be read: " << unreadable.what() << "\n";
  }
}

}  // namespace sluice::finetune
