#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "apps/finetune/learning_rate.h"
#include "apps/finetune/state_options.h"
#include "cpu_optim/adamw.h"
#include "engine/base/dtype.h"
#include "engine/base/trace.h"
#include "engine/schedule/plan.h"

namespace sluice::finetune {

// What each command of `finetune` was asked to do: checked values, defaults filled in. Nothing here opens a
// file. Defaults are those of Hugging Face's Trainer (transformers/training_args.py), except learning_rate
// (2e-5, usual for full fine-tuning, where it has 5e-5), per_device_train_batch_size (1 for 8) and
// logging_steps (1 for 500).

enum class OnBadRow { stop, skip };

// How the engine runs, whatever the command. None of these changes a number, except compute_dtype.
struct EngineOptions {
  std::optional<DType> compute_dtype;     // bf16 or f32; empty: what the kernel table says is faster here
  std::optional<uint64_t> device_memory;  // bytes; empty: the plan's own peak with everything kept
  int64_t threads = 0;                 // of the pool; the parser fills in the cores that this process may use
  int64_t prefetch_distance = 1;       // blocks fetched ahead of the one in use
  std::optional<uint64_t> delay_seed;  // tests: delays every stream by a schedule of this seed
  bool check_hazards = false;          // tests: stops at an access that no event orders
};

struct DataOptions {
  std::string data;               // .jsonl or .txt
  int64_t max_seq_length = 1024;  // tokens of a row; longer ones are cut and counted
  OnBadRow on_bad_row = OnBadRow::stop;
};

struct TrainOptions {
  std::string model;   // Hugging Face folder
  std::string output;  // folder to make
  DataOptions data;
  EngineOptions engine;
  StateOptions state;

  int64_t max_steps = -1;       // optimizer steps; -1: as num_train_epochs says
  double num_train_epochs = 3;  // may be a fraction
  double learning_rate = 2e-5;  // peak
  LearningRateSchedule lr_scheduler_type = LearningRateSchedule::linear;
  int64_t warmup_steps = 0;
  double weight_decay = 0;  // not on norms and biases
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;        // 0: no clipping
  int64_t max_skipped_steps = 20;  // in a row, for a gradient norm that is not finite; one more ends the run
  cpu_optim::AdamVariant optim = cpu_optim::AdamVariant::adamw;
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;
  std::optional<DType> gradient_dtype;  // bf16 or f32, while they wait; empty: as compute_dtype
  int64_t per_device_train_batch_size = 1;
  int64_t gradient_accumulation_steps = 1;
  int64_t gradient_shards = 1;  // divides gradient_accumulation_steps
  uint64_t seed = 42;
  Recompute recompute = Recompute::automatic;  // of activations in backward
  std::optional<DType> export_dtype;           // of the result: bf16 or f32; empty: as the model's files are
  int64_t logging_steps = 1;                   // on the screen; events.jsonl has every step
  bool json = false;                           // the result as one JSON object on standard output
  std::string trace;                           // file to write; empty: none
  TraceWindow trace_steps;                     // which steps are in it
};

struct PlanOptions {
  TrainOptions train;  // data and output may be empty
  std::string as;      // a GPU by name or numbers (gpu/timed/gpu_models.h); empty: this processor
  bool json = false;
};

struct EvalOptions {
  std::string model;
  DataOptions data;
  EngineOptions engine;
  int64_t per_device_eval_batch_size = 1;
  bool json = false;
};

struct GenerateOptions {
  std::string model;
  std::vector<std::string> prompts;  // at least one; they share each pass over the weights
  EngineOptions engine;
  int64_t max_new_tokens = 128;
  bool json = false;
};

struct ImportOptions {
  std::string file;    // GGUF
  std::string output;  // folder to make
};

struct InitOptions {
  std::string config;  // config.json, or a folder that holds one
  std::string output;  // folder to make
  uint64_t seed = 42;
  std::optional<DType> dtype;               // bf16 or f32; empty: what config.json says, else bf16
  uint64_t max_shard_size = 5'000'000'000;  // bytes of tensors in a file, as transformers' save_pretrained
};

struct ConvertStateOptions {
  std::string input;   // output folder of a run that was interrupted
  std::string output;  // folder for the converted run; empty: in place
  cpu_optim::StateFormat state_format = cpu_optim::StateFormat::split;
};

struct TokenizeOptions {
  std::string model;
};

struct HelpText {
  std::string text;
};

using ParsedCommand = std::variant<HelpText, TrainOptions, PlanOptions, EvalOptions, GenerateOptions,
                                   ImportOptions, InitOptions, ConvertStateOptions, TokenizeOptions>;

// `arguments` are those behind the program's name: {"train", "--model", ...}. Throws Error(usage).
ParsedCommand parse_command_line(std::span<const std::string> arguments);

}  // namespace sluice::finetune
