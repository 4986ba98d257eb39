#include "apps/finetune/train_events.h"

#include <string_view>

#include "apps/common/version.h"
#include "apps/finetune/disk_use.h"
#include "apps/finetune/plan_report.h"
#include "apps/finetune/state_report.h"

namespace sluice::finetune {
namespace {

using Json = nlohmann::ordered_json;

std::string_view name(LearningRateSchedule schedule) {
  return schedule == LearningRateSchedule::constant ? "constant"
         : schedule == LearningRateSchedule::linear ? "linear"
                                                    : "cosine";
}

std::string_view name(Recompute recompute) {
  return recompute == Recompute::automatic ? "auto" : recompute == Recompute::none ? "none" : "all";
}

Json engine_json(const EngineOptions& options) {
  return {{"compute_dtype", sluice::name(compute_dtype(options))},
          {"device_memory", options.device_memory ? Json(*options.device_memory) : Json()},
          {"threads", options.threads},
          {"prefetch_distance", options.prefetch_distance}};
}

}  // namespace

Json options_json(const TrainOptions& options) {
  Json json = {
      {"model", options.model},
      {"data", options.data.data},
      {"output", options.output},
      {"max_seq_length", options.data.max_seq_length},
      {"on_bad_row", options.data.on_bad_row == OnBadRow::skip ? "skip" : "stop"},
      {"max_steps", options.max_steps},
      {"num_train_epochs", options.num_train_epochs},
      {"learning_rate", options.learning_rate},
      {"lr_scheduler_type", name(options.lr_scheduler_type)},
      {"warmup_steps", options.warmup_steps},
      {"weight_decay", options.weight_decay},
      {"adam_beta1", options.adam_beta1},
      {"adam_beta2", options.adam_beta2},
      {"adam_epsilon", options.adam_epsilon},
      {"max_grad_norm", options.max_grad_norm},
      {"max_skipped_steps", options.max_skipped_steps},
      {"optim", options.optim == cpu_optim::AdamVariant::adamw ? "adamw" : "adam"},
      {"state_format", cpu_optim::name(options.state_format)},
      {"gradient_dtype", sluice::name(options.gradient_dtype.value_or(compute_dtype(options.engine)))},
      {"per_device_train_batch_size", options.per_device_train_batch_size},
      {"gradient_accumulation_steps", options.gradient_accumulation_steps},
      {"gradient_shards", options.gradient_shards},
      {"seed", options.seed},
      {"recompute", name(options.recompute)},
      {"export_dtype", options.export_dtype ? sluice::name(*options.export_dtype) : "source"}};
  json.update(engine_json(options.engine));
  json.update(state_json(options.state));
  return json;
}

namespace {

Json versions_json() {
  return {{"finetune", kVersion}, {"compiler", __VERSION__}};
}

// As `finetune plan --json` says it, but for what is foretold.
Json plan_facts(const TrainOptions& options, const TrainSetup& setup, const Plan& plan) {
  Json json = plan_json(plan, setup.trainer);
  json["states"] = state_format_json(setup);
  json["drives"] = disk_json(disk_use(options, setup, plan));
  return json;
}

Json peak_json(const PeakBytes& peak) {
  return {{"device", peak.device}, {"host", peak.host}, {"process", peak.process}};
}

}  // namespace

Json start_event(const TrainOptions& options, const TrainSetup& setup, const Plan& plan) {
  const DatasetReport& data = setup.data->report();
  return {{"event", "start"},
          {"options", options_json(options)},
          {"versions", versions_json()},
          {"kernel_table", plan_json(plan, setup.trainer)["kernel_table"]},
          {"plan", plan_facts(options, setup, plan)},
          {"data",
           {{"rows", data.row_count},
            {"cut_rows", data.cut_count},
            {"dropped_rows", data.unlabelled_count + data.bad_count},
            {"tokens", data.token_count},
            {"label_tokens", data.label_count}}},
          {"steps_per_epoch", setup.steps_per_epoch},
          {"total_steps", setup.total_steps},
          {"warnings", setup.warnings}};
}

Json resume_event(const TrainOptions& options, const TrainSetup& setup, const Plan& plan, int64_t step,
                  int64_t dropped_steps) {
  return {{"event", "resume"},
          {"step", step},
          {"dropped_steps", dropped_steps},
          {"options", options_json(options)},
          {"versions", versions_json()},
          {"kernel_table", plan_json(plan, setup.trainer)["kernel_table"]},
          {"plan", plan_facts(options, setup, plan)},
          {"warnings", setup.warnings}};
}

Json step_event(const StepFacts& facts) {
  const StepReport& report = facts.report;
  return {{"event", "step"},
          {"step", facts.step},
          {"epoch", facts.epoch},
          {"loss", report.loss},
          {"grad_norm", report.gradient_norm},
          {"learning_rate", facts.learning_rate},
          {"tokens", report.token_count},
          {"label_tokens", report.label_count},
          {"tokens_per_second", facts.tokens_per_second()},
          {"step_seconds", facts.seconds},
          {"waited",
           {{"compute", report.waited.compute},
            {"copy_in", report.waited.copy_in},
            {"copy_out", report.waited.copy_out},
            {"disk", report.waited.disk},
            {"optimizer", report.waited.optimizer}}},
          {"peak_bytes", peak_json(facts.peak)},
          {"written_bytes", facts.written_bytes},
          {"skipped", report.skipped}};
}

Json end_event(const RunFacts& facts, const std::string& output) {
  constexpr double kSecondsPerDay = 86400;
  const auto written = static_cast<double>(facts.written_bytes);
  return {
      {"event", "end"},
      {"steps", facts.steps},
      {"state_hash", facts.state_hash},
      {"loss", facts.loss},
      {"train_loss", facts.train_loss},
      {"tokens", facts.tokens},
      {"label_tokens", facts.label_tokens},
      {"seconds", facts.seconds},
      {"tokens_per_second", facts.seconds > 0 ? static_cast<double>(facts.tokens) / facts.seconds : 0.0},
      {"skipped_steps", facts.skipped_steps},
      {"written_bytes", facts.written_bytes},
      {"written_bytes_per_step", facts.steps > 0 ? written / static_cast<double>(facts.steps) : 0.0},
      {"written_bytes_per_day", facts.seconds > 0 ? written / facts.seconds * kSecondsPerDay : 0.0},
      {"peak_bytes", peak_json(facts.peak)},
      {"exported", {{"moved_weights", facts.exported.moved}, {"unshown_weights", facts.exported.unshown}}},
      {"output", output}};
}

}  // namespace sluice::finetune
