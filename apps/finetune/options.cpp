#include "apps/finetune/options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "apps/common/option_table.h"
#include "apps/common/pool.h"
#include "apps/common/version.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

using Ends = Range::Ends;

constexpr Range kFromZero{.minimum = 0};
constexpr Range kFromOne{.minimum = 1};
constexpr Range kBeta{.minimum = 0, .maximum = 1, .ends = Ends::open_above};

// `unset` is the word for no dtype.
OptionValue dtype_value(std::optional<DType>& dtype, const char* unset) {
  return choice_value<std::optional<DType>>(dtype,
                                            {{unset, std::nullopt},
                                             {"bf16", DType::bf16},
                                             {"fp32", DType::f32},
                                             {"bfloat16", DType::bf16},
                                             {"float32", DType::f32}},
                                            3);
}

OptionValue state_format_value(cpu_optim::StateFormat& format) {
  std::vector<std::pair<std::string, cpu_optim::StateFormat>> choices;
  for (const cpu_optim::StateFormat each : cpu_optim::kStateFormats)
    choices.emplace_back(cpu_optim::name(each), each);
  const size_t count = choices.size();
  return choice_value(format, std::move(choices), count);
}

void add_model(OptionTable& table, std::string& model) {
  table.add("Model", {.name = "model",
                      .value = text_value(model, "DIR"),
                      .help = "Hugging Face folder of the model",
                      .aliases = {"model_name_or_path", "base_model", "checkpoint_dir"},
                      .presence = Presence::required});
}

void add_output(OptionTable& table, std::string& output, Presence presence) {
  table.add("Model", {.name = "output",
                      .value = text_value(output, "DIR"),
                      .help = "folder to make for the result",
                      .aliases = {"output_dir", "out_dir"},
                      .presence = presence});
}

void add_data(OptionTable& table, DataOptions& data, Presence presence) {
  table.add(
      "Data",
      {.name = "data",
       .value = text_value(data.data, "FILE"),
       .help =
           "rows: .jsonl of {\"text\": ...} or {\"prompt\": ..., \"completion\": ...} (only the completion "
           "is learnt), or .txt",
       .aliases = {"dataset", "train_file"},
       .presence = presence});
  table.add("Data", {.name = "max_seq_length",
                     .value = integer_value(data.max_seq_length, {.minimum = 2, .maximum = 1 << 24}),
                     .help = "tokens of a row; longer rows are cut and counted",
                     .aliases = {"cutoff_len", "sequence_len", "max_length", "max_seq_len"}});
  table.add("Data", {.name = "on_bad_row",
                     .value = choice_value<OnBadRow>(
                         data.on_bad_row,
                         {{"stop", OnBadRow::stop}, {"skip", OnBadRow::skip}, {"error", OnBadRow::stop}}, 2),
                     .help = "what to do with a row that cannot be read",
                     .aliases = {}});
}

void add_engine(OptionTable& table, EngineOptions& engine) {
  const std::string group = "Engine";
  table.add(group, {.name = "device_memory",
                    .value = size_value(engine.device_memory, "what keeping everything takes"),
                    .help = "limit of the device tier; less is streamed and recomputed",
                    .aliases = {}});
  table.add(group, {.name = "compute_dtype",
                    .value = dtype_value(engine.compute_dtype, "auto"),
                    .help = "auto: the faster one on this processor",
                    .aliases = {"precision", "dtype"}});
  table.add(group, {.name = "threads",
                    .value = integer_value(engine.threads, {.minimum = 1, .maximum = 1024}),
                    .help = "threads of the pool; by default one for each core that may be used",
                    .aliases = {"num_threads"}});
  table.add(group, {.name = "prefetch_distance",
                    .value = integer_value(engine.prefetch_distance, {.minimum = 0, .maximum = 64}),
                    .help = "blocks fetched ahead of the one in use",
                    .aliases = {}});
  table.add(group, {.name = "delay_seed",
                    .value = seed_value(engine.delay_seed),
                    .help = "delay every stream by a schedule of this seed",
                    .aliases = {},
                    .presence = Presence::hidden});
  table.add(group, {.name = "check_hazards",
                    .value = flag_value(engine.check_hazards),
                    .help = "stop at an access that no event orders",
                    .aliases = {},
                    .presence = Presence::hidden});
}

void add_json(OptionTable& table, bool& json) {
  table.add("Output", {.name = "json",
                       .value = flag_value(json),
                       .help = "print the result as JSON on standard output",
                       .aliases = {}});
}

void add_duration(OptionTable& table, TrainOptions& train) {
  const std::string group = "Batch";
  table.add(group, {.name = "max_steps",
                    .value = integer_value(train.max_steps, {.minimum = -1}),
                    .help = "optimizer steps; -1: as many as --num_train_epochs makes",
                    .aliases = {"iters"}});
  table.add(group, {.name = "num_train_epochs",
                    .value = real_value(train.num_train_epochs, {.minimum = 0, .ends = Ends::open}),
                    .help = "passes over the data; may be a fraction",
                    .aliases = {"num_epochs", "epochs"}});
  table.add(group, {.name = "per_device_train_batch_size",
                    .value = integer_value(train.per_device_train_batch_size, kFromOne),
                    .help = "rows of a micro-batch",
                    .aliases = {"micro_batch_size", "batch_size"}});
  table.add(group, {.name = "gradient_accumulation_steps",
                    .value = integer_value(train.gradient_accumulation_steps, kFromOne),
                    .help = "micro-batches of an optimizer step",
                    .aliases = {"grad_accumulation_steps"}});
  table.add(group,
            {.name = "gradient_shards",
             .value = integer_value(train.gradient_shards, kFromOne),
             .help = "parts that gradients are summed in; part of the numbers, divides the micro-batches",
             .aliases = {}});
  table.add(group, {.name = "seed",
                    .value = seed_value(train.seed),
                    .help = "of the order of the rows",
                    .aliases = {"random_seed"}});
}

void add_optimizer(OptionTable& table, TrainOptions& train) {
  const std::string group = "Optimizer";
  using Schedule = LearningRateSchedule;
  table.add(group, {.name = "learning_rate",
                    .value = real_value(train.learning_rate, kFromZero),
                    .help = "at its peak, after the warm-up",
                    .aliases = {"lr"}});
  table.add(group, {.name = "lr_scheduler_type",
                    .value = choice_value<Schedule>(train.lr_scheduler_type,
                                                    {{"constant", Schedule::constant},
                                                     {"linear", Schedule::linear},
                                                     {"cosine", Schedule::cosine},
                                                     {"constant_with_warmup", Schedule::constant}},
                                                    3),
                    .help = "how the learning rate falls after warm-up",
                    .aliases = {"lr_scheduler", "lr_schedule"}});
  table.add(group, {.name = "warmup_steps",
                    .value = integer_value(train.warmup_steps, kFromZero),
                    .help = "steps in which the learning rate rises from 0",
                    .aliases = {"lr_warmup_steps"}});
  table.add(group, {.name = "weight_decay",
                    .value = real_value(train.weight_decay, kFromZero),
                    .help = "not on norms and biases",
                    .aliases = {}});
  table.add(group, {.name = "optim",
                    .value = choice_value<cpu_optim::AdamVariant>(
                        train.optim,
                        {{"adamw", cpu_optim::AdamVariant::adamw},
                         {"adam", cpu_optim::AdamVariant::adam},
                         {"adamw_torch", cpu_optim::AdamVariant::adamw},
                         {"adamw_torch_fused", cpu_optim::AdamVariant::adamw}},
                        2),
                    .help = "adamw decays weights apart from their gradient, adam in it (L2)",
                    .aliases = {"optimizer"}});
  table.add(group, {.name = "state_format",
                    .value = state_format_value(train.state_format),
                    .help = "what is kept of a parameter: 12, 8, 6, 4 or 14 bytes (docs/state-formats.md)",
                    .aliases = {}});
  table.add(group, {.name = "gradient_dtype",
                    .value = dtype_value(train.gradient_dtype, "auto"),
                    .help = "of gradients that wait for the update; auto: as --compute_dtype",
                    .aliases = {"grad_dtype"}});
  table.add(group, {.name = "adam_beta1",
                    .value = real_value(train.adam_beta1, kBeta),
                    .help = "decay of the first moment",
                    .aliases = {}});
  table.add(group, {.name = "adam_beta2",
                    .value = real_value(train.adam_beta2, kBeta),
                    .help = "decay of the second moment",
                    .aliases = {}});
  table.add(group, {.name = "adam_epsilon",
                    .value = real_value(train.adam_epsilon, {.minimum = 0, .ends = Ends::open}),
                    .help = "added to the root of the second moment",
                    .aliases = {}});
  table.add(group, {.name = "max_grad_norm",
                    .value = real_value(train.max_grad_norm, kFromZero),
                    .help = "clip the global norm of the gradients to it; 0: do not clip",
                    .aliases = {"clip_grad_norm", "max_norm", "gradient_clipping"}});
  table.add(group, {.name = "max_skipped_steps",
                    .value = integer_value(train.max_skipped_steps, kFromZero),
                    .help = "steps in a row that are skipped, as their gradient norm is not finite; one more "
                            "ends the run",
                    .aliases = {}});
}

// "FIRST:LAST", or one step.
OptionValue trace_steps_value(TraceWindow& window) {
  return {
      .argument = "FIRST:LAST",
      .default_text = "the first 4 and the last 4",
      .implicit = "",
      .words = {},
      .assign = [&window](std::string_view text) {
        const size_t colon = text.find(':');
        const int64_t first = parse_integer(text.substr(0, colon));
        const int64_t last = colon == std::string_view::npos ? first : parse_integer(text.substr(colon + 1));
        if (first < 1 || last < first) {
          throw Error(ErrorKind::usage, "'" + std::string(text) +
                                            "' is no range of steps. Write it as 1:8; the first step is 1.");
        }
        window = {.first = first, .last = last, .newest = 0, .count = TraceWindow::Count::of_run};
      }};
}

void add_trace(OptionTable& table, TrainOptions& train) {
  table.add("Output", {.name = "trace",
                       .value = text_value(train.trace, "FILE"),
                       .help = "write what each lane did, and was predicted to do, for ui.perfetto.dev",
                       .aliases = {}});
  table.add("Output", {.name = "trace_steps",
                       .value = trace_steps_value(train.trace_steps),
                       .help = "steps in the trace",
                       .aliases = {}});
}

void add_train(OptionTable& table, TrainOptions& train, Presence files) {
  add_model(table, train.model);
  add_output(table, train.output, files);
  add_data(table, train.data, files);
  add_duration(table, train);
  add_optimizer(table, train);
  add_engine(table, train.engine);
  add_state(table, train.state);
  OptionValue recompute = choice_value<Recompute>(train.recompute,
                                                  {{"auto", Recompute::automatic},
                                                   {"none", Recompute::none},
                                                   {"all", Recompute::all},
                                                   {"false", Recompute::none},
                                                   {"true", Recompute::all}},
                                                  3);
  recompute.implicit = "all";  // a bare --gradient_checkpointing
  table.add("Engine", {.name = "recompute",
                       .value = std::move(recompute),
                       .help = "activations to compute again in backward; auto: those that do not fit",
                       .aliases = {"gradient_checkpointing", "grad_checkpoint", "activation_checkpointing",
                                   "enable_activation_checkpointing"}});
  table.add("Output", {.name = "export_dtype",
                       .value = dtype_value(train.export_dtype, "source"),
                       .help = "of the result; source: as the model's files are",
                       .aliases = {"save_dtype"}});
  table.add("Output", {.name = "logging_steps",
                       .value = integer_value(train.logging_steps, kFromOne),
                       .help = "steps from one line on the screen to the next; events.jsonl has all",
                       .aliases = {"steps_per_report"}});
  add_trace(table, train);
}

// What no single option can tell.
void check_train(const TrainOptions& train) {
  check_state(train.state);
  if (train.max_steps == 0) {
    throw Error(ErrorKind::usage,
                "--max_steps: '0' leaves nothing to do. Give at least 1, or -1 for whole epochs.");
  }
  if (train.gradient_accumulation_steps % train.gradient_shards != 0) {
    throw Error(ErrorKind::usage, "--gradient_shards: " + std::to_string(train.gradient_shards) +
                                      " does not divide --gradient_accumulation_steps " +
                                      std::to_string(train.gradient_accumulation_steps) +
                                      ": every shard takes the same number of micro-batches.");
  }
}

using Arguments = std::span<const std::string>;

// Parses into `options`; help instead, where asked for.
template <class Options>
ParsedCommand finish(const OptionTable& table, Arguments arguments, Options& options) {
  if (table.parse(arguments) == OptionTable::Outcome::help_wanted) return HelpText{table.help()};
  return std::move(options);
}

ParsedCommand parse_train(Arguments arguments) {
  TrainOptions options;
  options.engine.threads = usable_core_count();
  OptionTable table(
      "finetune train", "finetune train --model DIR --data FILE --output DIR [options]",
      "Fine-tunes a model and writes it as a folder like the one it came from, with events.jsonl, which\n"
      "has a line for every step. Look before with `finetune plan` and the same options.");
  add_train(table, options, Presence::required);
  add_json(table, options.json);
  ParsedCommand command = finish(table, arguments, options);
  if (const auto* train = std::get_if<TrainOptions>(&command)) check_train(*train);
  return command;
}

ParsedCommand parse_plan(Arguments arguments) {
  PlanOptions options;
  options.train.engine.threads = usable_core_count();
  OptionTable table(
      "finetune plan", "finetune plan --model DIR [options of train]",
      "Tells what training would take: bytes of every tier, moves, time, and whether to begin. --model may\n"
      "also be a config.json alone.");
  add_train(table, options.train, Presence::optional);
  table.add("Engine",
            {.name = "as",
             .value = text_value(options.as, "GPU"),
             .help = "plan for a GPU by its data sheet: \"RTX 4090\", or flops=...,memory=...,pcie=...",
             .aliases = {}});
  add_json(table, options.json);
  ParsedCommand command = finish(table, arguments, options);
  if (const auto* plan = std::get_if<PlanOptions>(&command)) check_train(plan->train);
  return command;
}

ParsedCommand parse_eval(Arguments arguments) {
  EvalOptions options;
  options.engine.threads = usable_core_count();
  OptionTable table("finetune eval", "finetune eval --model DIR --data FILE [options]",
                    "Measures the loss of a model: summed negative log-likelihood, tokens, perplexity.");
  add_model(table, options.model);
  add_data(table, options.data, Presence::required);
  table.add("Data", {.name = "per_device_eval_batch_size",
                     .value = integer_value(options.per_device_eval_batch_size, kFromOne),
                     .help = "rows of a micro-batch",
                     .aliases = {"batch_size"}});
  add_engine(table, options.engine);
  add_json(table, options.json);
  return finish(table, arguments, options);
}

ParsedCommand parse_generate(Arguments arguments) {
  GenerateOptions options;
  options.engine.threads = usable_core_count();
  OptionTable table("finetune generate",
                    "finetune generate --model DIR --prompt TEXT [--prompt TEXT ...] [options]",
                    "Continues prompts with the likeliest token each time.");
  add_model(table, options.model);
  table.add("Text",
            {.name = "prompt",
             .value = list_value(options.prompts, "TEXT"),
             .help = "text to continue; give it again for several prompts in one pass over the weights",
             .aliases = {},
             .presence = Presence::required});
  table.add("Text", {.name = "max_new_tokens",
                     .value = integer_value(options.max_new_tokens, {.minimum = 1, .maximum = 1 << 24}),
                     .help = "tokens to make, unless the text ends before",
                     .aliases = {"max_tokens"}});
  add_engine(table, options.engine);
  add_json(table, options.json);
  return finish(table, arguments, options);
}

ParsedCommand parse_import(Arguments arguments) {
  ImportOptions options;
  OptionTable table("finetune import", "finetune import FILE.gguf --output DIR",
                    "Makes a Hugging Face folder, with tokenizer and chat template, of a GGUF file.");
  table.add("Model", {.name = "file",
                      .value = text_value(options.file, "FILE"),
                      .help = "GGUF file; --file may be left out",
                      .aliases = {"input"},
                      .presence = Presence::required});
  table.set_positional("file");
  add_output(table, options.output, Presence::required);
  return finish(table, arguments, options);
}

ParsedCommand parse_init(Arguments arguments) {
  InitOptions options;
  OptionTable table(
      "finetune init", "finetune init --config FILE --output DIR [options]",
      "Makes a model with random weights of a config.json, as a Hugging Face folder. A tokenizer\n"
      "beside the config comes with it.");
  table.add("Model", {.name = "config",
                      .value = text_value(options.config, "FILE"),
                      .help = "config.json, or the folder that holds it",
                      .aliases = {"config_name", "model"},
                      .presence = Presence::required});
  add_output(table, options.output, Presence::required);
  table.add("Model", {.name = "seed",
                      .value = seed_value(options.seed),
                      .help = "of the weights: the same seed gives the same files",
                      .aliases = {"random_seed"}});
  table.add("Model", {.name = "dtype",
                      .value = dtype_value(options.dtype, "auto"),
                      .help = "of the weights; auto: what config.json says, else bf16",
                      .aliases = {"torch_dtype"}});
  table.add("Model", {.name = "max_shard_size",
                      .value = size_value(options.max_shard_size, "5GB"),
                      .help = "of tensors in a file; more makes several, with an index",
                      .aliases = {}});
  return finish(table, arguments, options);
}

ParsedCommand parse_convert_state(Arguments arguments) {
  ConvertStateOptions options;
  OptionTable table(
      "finetune convert-state", "finetune convert-state --input DIR --state_format FORMAT [options]",
      "Puts the saved state of an interrupted run into another format, so that --resume goes on "
      "in that one.");
  table.add("State", {.name = "input",
                      .value = text_value(options.input, "DIR"),
                      .help = "output folder of the run",
                      .aliases = {"checkpoint"},
                      .presence = Presence::required});
  OptionValue format = state_format_value(options.state_format);
  format.default_text.clear();
  table.add("State", {.name = "state_format",
                      .value = std::move(format),
                      .help = "what the state is to be kept in",
                      .aliases = {},
                      .presence = Presence::required});
  table.add("State", {.name = "output",
                      .value = text_value(options.output, "DIR"),
                      .help = "folder to make for the converted run; by default its own, whose state is "
                              "replaced once the new one is whole",
                      .aliases = {"output_dir", "out_dir"}});
  return finish(table, arguments, options);
}

ParsedCommand parse_tokenize(Arguments arguments) {
  TokenizeOptions options;
  OptionTable table("finetune tokenize", "finetune tokenize --model DIR < FILE",
                    "Reads lines and prints the token ids of each.");
  add_model(table, options.model);
  return finish(table, arguments, options);
}

struct CommandRow {
  std::string_view name;
  std::string_view summary;
  ParsedCommand (*parse)(Arguments);
};

constexpr std::array kCommands = {
    CommandRow{"train", "fine-tune a model", parse_train},
    CommandRow{"plan", "tell what training would take, without training", parse_plan},
    CommandRow{"eval", "measure the loss of a model on a file", parse_eval},
    CommandRow{"generate", "continue prompts", parse_generate},
    CommandRow{"import", "make a Hugging Face folder of a GGUF file", parse_import},
    CommandRow{"init", "make a model with random weights of a config.json", parse_init},
    CommandRow{"convert-state", "put a saved state into another format", parse_convert_state},
    CommandRow{"tokenize", "print the token ids of lines", parse_tokenize},
};

std::string commands_help() {
  std::string text = "Usage: finetune COMMAND [options]\n\nCommands:\n";
  for (const CommandRow& row : kCommands) {
    text += "  " + std::string(row.name) + std::string(15 - row.name.size(), ' ') + std::string(row.summary) +
            "\n";
  }
  return text +
         "\nfinetune COMMAND --help lists its options; finetune --version prints the version.\n"
         "Option names of other trainers (--lr, --batch_size, --epochs, ...) are understood.\n"
         "A first run: finetune train --model DIR --data rows.jsonl --output trained\n"
         "Exit codes: 0 done, 1 a fault of the system, 2 command line, 3 model or data, 4 memory or disk, "
         "5 loss or gradients not finite.\n";
}

const CommandRow* find_command(std::string_view name) {
  const auto* row = std::ranges::find(kCommands, name, &CommandRow::name);
  return row == kCommands.end() ? nullptr : row;
}

}  // namespace

ParsedCommand parse_command_line(std::span<const std::string> arguments) {
  if (arguments.empty()) throw Error(ErrorKind::usage, "which command?\n" + commands_help());
  const std::string& name = arguments[0];
  if (name == "-h" || name == "--help" || name == "help") {
    const CommandRow* row = arguments.size() > 1 ? find_command(arguments[1]) : nullptr;
    if (row == nullptr) return HelpText{commands_help()};
    return row->parse(std::vector<std::string>{"--help"});
  }
  if (name == "--version" || name == "-V" || name == "version")
    return HelpText{"finetune " + std::string(kVersion) + "\n"};
  if (const CommandRow* row = find_command(name)) return row->parse(arguments.subspan(1));
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) names.emplace_back(row.name);
  const std::optional<std::string> nearest = nearest_word(name, names);
  throw Error(ErrorKind::usage, "unknown command '" + name + "'. " +
                                    (nearest ? "Did you mean " + *nearest + "? " : std::string()) +
                                    "All commands: finetune --help");
}

}  // namespace sluice::finetune
