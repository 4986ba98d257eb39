#include "apps/finetune/train_setup.h"

#include <algorithm>
#include <cmath>

#include "apps/finetune/machine_memory.h"
#include "apps/finetune/model_warnings.h"
#include "apps/finetune/report.h"
#include "engine/base/error.h"
#include "engine/base/math.h"

namespace sluice::finetune {
namespace {

int64_t longest_row(const Dataset& data) {
  int64_t longest = 0;
  for (int64_t row = 0; row < data.size(); ++row) longest = std::max(longest, data.row_length(row));
  return longest;
}

// The largest micro-batch that the data, or without it --max_seq_length, can bring.
BatchLimits batch_limits(const TrainOptions& options, const TrainSetup& setup) {
  BatchLimits limits{.micro_batch_count = static_cast<int>(options.gradient_accumulation_steps),
                     .rows = options.per_device_train_batch_size,
                     .tokens_per_row = options.data.max_seq_length};
  if (setup.data) {
    limits.rows = std::min(limits.rows, setup.data->size());
    limits.tokens_per_row = longest_row(*setup.data);
  }
  limits.tokens = setup.data ? setup.batcher->most_padded_tokens()
                             : round_up(limits.rows * limits.tokens_per_row, kTokenPadding);
  return limits;
}

void check_batch_size(const TrainOptions& options) {
  constexpr int64_t kMostTokens = INT32_MAX;
  const int64_t rows = options.per_device_train_batch_size;
  if (rows > kMostTokens / options.data.max_seq_length || options.gradient_accumulation_steps > kMostTokens) {
    throw Error(ErrorKind::usage,
                "a micro-batch of " + std::to_string(rows) + " rows of " +
                    std::to_string(options.data.max_seq_length) +
                    " tokens is too large. Lower --per_device_train_batch_size or --max_seq_length.");
  }
}

int64_t count_steps(const TrainOptions& options, int64_t steps_per_epoch) {
  if (options.max_steps > 0) return options.max_steps;
  const double steps = std::ceil(options.num_train_epochs * static_cast<double>(steps_per_epoch));
  if (steps > 0x1p53) {
    throw Error(ErrorKind::usage, "--num_train_epochs: that many epochs of " +
                                      std::to_string(steps_per_epoch) + " steps cannot be counted.");
  }
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

void open_training_data(const TrainOptions& options, TrainSetup& setup) {
  Tokenizer tokenizer = open_tokenizer(setup.model);
  setup.data = open_data(setup.model, tokenizer, options.data);
  setup.batcher = std::make_unique<Batcher>(
      *setup.data, options.seed,
      BatcherOptions{options.per_device_train_batch_size, options.gradient_accumulation_steps});
  setup.steps_per_epoch = setup.batcher->steps_per_epoch();
  setup.total_steps = count_steps(options, setup.steps_per_epoch);
  setup.first_example = example_text(*setup.data, 0, tokenizer);
  for (auto found : {data_warnings(setup.model, *setup.data), end_token_warnings(setup.model, tokenizer),
                     untrained_token_warnings(setup.model, tokenizer, *setup.data)}) {
    setup.warnings.insert(setup.warnings.end(), found.begin(), found.end());
  }
}

TrainerOptions trainer_options(const TrainOptions& options, const TrainSetup& setup) {
  return {.compute_dtype = compute_dtype(options.engine),
          .limits = batch_limits(options, setup),
          .prefetch_distance = static_cast<int>(options.engine.prefetch_distance),
          .gradient_shards = static_cast<int>(options.gradient_shards),
          .recompute = options.recompute,
          .device_limit_bytes = device_limit(options.engine),
          .host_limit_bytes = options.state.host_memory,
          .disk = options.state.spills(),
          .spill = options.state.spill,
          .layer_inputs = options.state.layer_inputs,
          .can_save = true,
          .host_parts = {process_base()},
          .freeze = {},
          .state_format = options.state_format,
          .gradient_dtype = options.gradient_dtype,
          .seed = options.seed,
          .adam = {.beta1 = options.adam_beta1,
                   .beta2 = options.adam_beta2,
                   .epsilon = options.adam_epsilon,
                   .weight_decay = options.weight_decay,
                   .variant = options.optim},
          .max_gradient_norm = options.max_grad_norm};
}

}  // namespace

TrainSetup set_up_training(const TrainOptions& options, WeightFiles weights) {
  check_batch_size(options);
  TrainSetup setup{.model = weights == WeightFiles::needed ? open_model(options.model)
                                                           : open_model_shape(options.model)};
  if (!options.data.data.empty()) open_training_data(options, setup);
  std::optional<TraceWindow> trace;
  if (!options.trace.empty()) trace = options.trace_steps;
  setup.runtime = open_runtime(options.engine, trace);
  setup.trainer = trainer_options(options, setup);
  return setup;
}

ModelSpec trained_model(const TrainSetup& setup) {
  return make_decoder_spec(setup.model.config, setup.trainer.freeze, setup.trainer.state_format).model;
}

LearningRate learning_rate_of(const TrainOptions& options, int64_t total_steps) {
  return {.schedule = options.lr_scheduler_type,
          .peak = options.learning_rate,
          .warmup_steps = options.warmup_steps,
          .total_steps = total_steps};
}

std::string check_machine_memory(const Plan& plan) {
  const size_t wanted = plan.peak_bytes(Tier::device) + plan.peak_bytes(Tier::host);  // both are RAM here
  if (wanted > machine_memory_bytes()) {
    throw Error(ErrorKind::resource,
                "the run needs " + format_bytes(wanted) +
                    " of RAM (device and host tier), this machine has " +
                    format_bytes(machine_memory_bytes()) +
                    ". Try a smaller --device_memory, --recompute all, or fewer or shorter rows.");
  }
  if (wanted <= available_memory_bytes() + resident_bytes()) return "";
  return "the run needs " + format_bytes(wanted) + " of RAM, of which only " +
         format_bytes(available_memory_bytes()) + " are free now.";
}

}  // namespace sluice::finetune
