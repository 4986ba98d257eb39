#include "apps/finetune/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/common/pool.h"
#include "engine/base/error.h"

namespace sluice::finetune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <class Options>
Options parsed(const std::vector<std::string>& arguments) {
  ParsedCommand command = parse_command_line(arguments);
  EXPECT_TRUE(std::holds_alternative<Options>(command));
  return std::get<Options>(command);
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

const std::vector<std::string> kTrain = {"train", "--model", "m", "--data", "d.jsonl", "--output", "o"};

TrainOptions train(const std::vector<std::string>& more) {
  return parsed<TrainOptions>(with(kTrain, more));
}

// The message of the usage error that the arguments must cause.
std::string usage_error(const std::vector<std::string>& arguments) {
  try {
    parse_command_line(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

std::string train_error(const std::vector<std::string>& more) {
  return usage_error(with(kTrain, more));
}

std::string help(const std::vector<std::string>& arguments) {
  return parsed<HelpText>(arguments).text;
}

TEST(TrainOptions, DefaultsAreTheDocumentedOnes) {
  const TrainOptions options = train({});
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.data.data, "d.jsonl");
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.max_steps, -1);
  EXPECT_EQ(options.num_train_epochs, 3);
  EXPECT_EQ(options.learning_rate, 2e-5);
  EXPECT_EQ(options.lr_scheduler_type, LearningRateSchedule::linear);
  EXPECT_EQ(options.warmup_steps, 0);
  EXPECT_EQ(options.weight_decay, 0);
  EXPECT_EQ(options.adam_beta1, 0.9);
  EXPECT_EQ(options.adam_beta2, 0.999);
  EXPECT_EQ(options.adam_epsilon, 1e-8);
  EXPECT_EQ(options.max_grad_norm, 1);
  EXPECT_EQ(options.per_device_train_batch_size, 1);
  EXPECT_EQ(options.gradient_accumulation_steps, 1);
  EXPECT_EQ(options.gradient_shards, 1);
  EXPECT_EQ(options.data.max_seq_length, 1024);
  EXPECT_EQ(options.data.on_bad_row, OnBadRow::stop);
  EXPECT_EQ(options.seed, 42u);
  EXPECT_EQ(options.recompute, Recompute::automatic);
  EXPECT_EQ(options.logging_steps, 1);
  EXPECT_FALSE(options.export_dtype.has_value());
  EXPECT_FALSE(options.engine.compute_dtype.has_value());
  EXPECT_FALSE(options.engine.device_memory.has_value());
  EXPECT_EQ(options.engine.threads, usable_core_count());
  EXPECT_EQ(options.engine.prefetch_distance, 1);
  EXPECT_FALSE(options.engine.delay_seed.has_value());
  EXPECT_FALSE(options.engine.check_hazards);
}

TEST(TrainOptions, EveryOptionIsRead) {
  const TrainOptions options = train({"--max_steps",
                                      "7",
                                      "--num_train_epochs",
                                      "1.5",
                                      "--learning_rate",
                                      "1E-4",
                                      "--lr_scheduler_type",
                                      "cosine",
                                      "--warmup_steps",
                                      "3",
                                      "--weight_decay",
                                      "0.1",
                                      "--adam_beta1",
                                      ".8",
                                      "--adam_beta2",
                                      "0.95",
                                      "--adam_epsilon",
                                      "1e-6",
                                      "--max_grad_norm",
                                      "0",
                                      "--per_device_train_batch_size",
                                      "2",
                                      "--gradient_accumulation_steps",
                                      "8",
                                      "--gradient_shards",
                                      "4",
                                      "--max_seq_length",
                                      "512",
                                      "--on_bad_row",
                                      "skip",
                                      "--seed",
                                      "18446744073709551615",
                                      "--recompute",
                                      "all",
                                      "--logging_steps",
                                      "10",
                                      "--export_dtype",
                                      "fp32",
                                      "--compute_dtype",
                                      "fp32",
                                      "--device_memory",
                                      "512MiB",
                                      "--threads",
                                      "3",
                                      "--prefetch_distance",
                                      "0",
                                      "--delay_seed",
                                      "9",
                                      "--check_hazards"});
  EXPECT_EQ(options.max_steps, 7);
  EXPECT_EQ(options.num_train_epochs, 1.5);
  EXPECT_EQ(options.learning_rate, 1e-4);
  EXPECT_EQ(options.lr_scheduler_type, LearningRateSchedule::cosine);
  EXPECT_EQ(options.warmup_steps, 3);
  EXPECT_EQ(options.weight_decay, 0.1);
  EXPECT_EQ(options.adam_beta1, 0.8);
  EXPECT_EQ(options.adam_beta2, 0.95);
  EXPECT_EQ(options.adam_epsilon, 1e-6);
  EXPECT_EQ(options.max_grad_norm, 0);
  EXPECT_EQ(options.per_device_train_batch_size, 2);
  EXPECT_EQ(options.gradient_accumulation_steps, 8);
  EXPECT_EQ(options.gradient_shards, 4);
  EXPECT_EQ(options.data.max_seq_length, 512);
  EXPECT_EQ(options.data.on_bad_row, OnBadRow::skip);
  EXPECT_EQ(options.seed, UINT64_MAX);
  EXPECT_EQ(options.recompute, Recompute::all);
  EXPECT_EQ(options.logging_steps, 10);
  EXPECT_EQ(options.export_dtype, DType::f32);
  EXPECT_EQ(options.engine.compute_dtype, DType::f32);
  EXPECT_EQ(options.engine.device_memory, 512u << 20);
  EXPECT_EQ(options.engine.threads, 3);
  EXPECT_EQ(options.engine.prefetch_distance, 0);
  EXPECT_EQ(options.engine.delay_seed, 9u);
  EXPECT_TRUE(options.engine.check_hazards);
}

TEST(Spelling, DashAndUnderscoreAndEqualsAreAlike) {
  for (const std::vector<std::string>& spelling :
       std::vector<std::vector<std::string>>{{"--learning_rate", "3e-5"},
                                             {"--learning-rate", "3e-5"},
                                             {"--learning_rate=3e-5"},
                                             {"--learning-rate=3e-5"},
                                             {"learning_rate=3e-5"},
                                             {"learning-rate=3e-5"},
                                             {"--lr", "3e-5"},
                                             {"lr=3e-5"}}) {
    EXPECT_EQ(train(spelling).learning_rate, 3e-5) << spelling[0];
  }
}

TEST(Spelling, NegativeNumbersAndDashesMayBeValues) {
  EXPECT_EQ(train({"--max_steps", "-1"}).max_steps, -1);
  EXPECT_EQ(train({"max_steps=-1"}).max_steps, -1);
  const auto options = parsed<GenerateOptions>({"generate", "--model", "m", "--prompt", "--not an option"});
  EXPECT_EQ(options.prompts, std::vector<std::string>{"--not an option"});
}

TEST(Spelling, TheLastOneCounts) {
  EXPECT_EQ(train({"--seed", "1", "seed=2"}).seed, 2u);
}

TEST(Spelling, AliasesOfOtherTrainersAreAccepted) {
  const TrainOptions options = parsed<TrainOptions>({"train",
                                                     "--model_name_or_path",
                                                     "m",
                                                     "dataset=d",
                                                     "--output-dir=o",
                                                     "--epochs",
                                                     "2",
                                                     "--iters",
                                                     "5",
                                                     "--batch_size",
                                                     "3",
                                                     "--grad_accumulation_steps",
                                                     "6",
                                                     "--cutoff_len",
                                                     "77",
                                                     "--lr_scheduler",
                                                     "constant_with_warmup",
                                                     "--random_seed",
                                                     "1",
                                                     "--precision",
                                                     "bfloat16",
                                                     "--gradient_clipping",
                                                     "0.5"});
  EXPECT_EQ(options.model, "m");
  EXPECT_EQ(options.data.data, "d");
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.num_train_epochs, 2);
  EXPECT_EQ(options.max_steps, 5);
  EXPECT_EQ(options.per_device_train_batch_size, 3);
  EXPECT_EQ(options.gradient_accumulation_steps, 6);
  EXPECT_EQ(options.data.max_seq_length, 77);
  EXPECT_EQ(options.lr_scheduler_type, LearningRateSchedule::constant);
  EXPECT_EQ(options.seed, 1u);
  EXPECT_EQ(options.engine.compute_dtype, DType::bf16);
  EXPECT_EQ(options.max_grad_norm, 0.5);
}

TEST(Spelling, GradientCheckpointingIsAFlagOrTakesABoolean) {
  EXPECT_EQ(train({"--gradient_checkpointing"}).recompute, Recompute::all);
  EXPECT_EQ(train({"--gradient_checkpointing", "--seed", "3"}).seed, 3u);
  EXPECT_EQ(train({"--gradient_checkpointing", "false"}).recompute, Recompute::none);
  EXPECT_EQ(train({"gradient_checkpointing=true"}).recompute, Recompute::all);
}

TEST(Spelling, FlagsTakeAnOptionalBoolean) {
  const std::vector<std::string> eval = {"eval", "--model", "m", "--data", "d"};
  EXPECT_FALSE(parsed<EvalOptions>(eval).json);
  EXPECT_TRUE(parsed<EvalOptions>(with(eval, {"--json"})).json);
  EXPECT_TRUE(parsed<EvalOptions>(with(eval, {"--json", "--threads", "2"})).json);
  EXPECT_FALSE(parsed<EvalOptions>(with(eval, {"--json", "off"})).json);
  EXPECT_FALSE(parsed<EvalOptions>(with(eval, {"--json=false"})).json);
  EXPECT_THAT(usage_error(with(eval, {"--json=maybe"})),
              HasSubstr("--json: 'maybe' is neither true nor false"));
}

TEST(UnknownOptions, AreAnsweredWithTheNearestName) {
  EXPECT_THAT(train_error({"--learing_rate", "1"}),
              AllOf(HasSubstr("unknown option --learing_rate of finetune train"),
                    HasSubstr("Did you mean --learning_rate?")));
  EXPECT_THAT(train_error({"learning_rat=1"}), HasSubstr("Did you mean --learning_rate?"));
  EXPECT_THAT(train_error({"--warmup-step", "1"}), HasSubstr("Did you mean --warmup_steps?"));
  EXPECT_THAT(train_error({"--sede", "1"}), HasSubstr("Did you mean --seed?"));  // a swap
  EXPECT_THAT(train_error({"--num_epoch", "1"}),
              HasSubstr("Did you mean --num_train_epochs?"));  // near an alias
  EXPECT_THAT(train_error({"-seed", "1"}), HasSubstr("Did you mean --seed?"));
}

TEST(UnknownOptions, FarFromEveryNameAreNotGuessedAt) {
  EXPECT_THAT(train_error({"--target_modules", "all"}),
              AllOf(Not(HasSubstr("Did you mean")), HasSubstr("--help")));
  EXPECT_THAT(train_error({"--delay_sed", "1"}), Not(HasSubstr("delay_seed")));  // hidden
}

TEST(UnknownOptions, BareWordsAreNamed) {
  EXPECT_THAT(train_error({"model.gguf"}), HasSubstr("does not know what to do with 'model.gguf'"));
}

TEST(UnknownOptions, CommandsToo) {
  EXPECT_THAT(usage_error({"trian"}), HasSubstr("Did you mean train?"));
  EXPECT_THAT(usage_error({}), HasSubstr("which command?"));
}

TEST(Values, MissingOnesAreNamed) {
  EXPECT_THAT(train_error({"--seed"}), HasSubstr("--seed needs a value"));
  EXPECT_THAT(train_error({"--seed", "--threads", "2"}), HasSubstr("--seed needs a value"));
  EXPECT_THAT(usage_error({"train", "--data", "d", "--output", "o"}), HasSubstr("needs --model DIR"));
  EXPECT_THAT(usage_error({"train", "--model", "m", "--output", "o"}), HasSubstr("needs --data FILE"));
  EXPECT_THAT(usage_error({"train", "--model", "m", "--data", "d"}), HasSubstr("needs --output DIR"));
  EXPECT_THAT(train_error({"--model="}), HasSubstr("--model: '' is empty"));
}

TEST(Values, OutOfRangeOnesAreNamedWithTheRange) {
  EXPECT_THAT(train_error({"--warmup_steps", "-3"}),
              AllOf(HasSubstr("--warmup_steps: '-3'"), HasSubstr("at least 0")));
  EXPECT_THAT(train_error({"--adam_beta1", "1"}),
              AllOf(HasSubstr("--adam_beta1: '1'"), HasSubstr("below 1")));
  EXPECT_THAT(train_error({"--adam_epsilon", "0"}), HasSubstr("above 0"));
  EXPECT_THAT(train_error({"--threads", "0"}), HasSubstr("at least 1 and at most 1024"));
  EXPECT_THAT(train_error({"--learning_rate", "-1e-5"}), HasSubstr("at least 0"));
  EXPECT_THAT(train_error({"--max_steps", "0"}), HasSubstr("leaves nothing to do"));
  EXPECT_THAT(train_error({"--max_steps", "-2"}), HasSubstr("at least -1"));
  EXPECT_THAT(train_error({"--gradient_accumulation_steps", "6", "--gradient_shards", "4"}),
              HasSubstr("4 does not divide --gradient_accumulation_steps 6"));
}

TEST(Values, OfTheWrongKindAreQuoted) {
  EXPECT_THAT(train_error({"--learning_rate", "fast"}), HasSubstr("--learning_rate: 'fast' is not a number"));
  EXPECT_THAT(train_error({"--learning_rate", "nan"}), HasSubstr("not a number"));
  EXPECT_THAT(train_error({"--learning_rate", "2e-5x"}), HasSubstr("not a number"));
  EXPECT_THAT(train_error({"--seed", "-1"}), HasSubstr("not a seed"));
  EXPECT_THAT(train_error({"--max_steps", "1.5"}), HasSubstr("not a whole number"));
  EXPECT_THAT(train_error({"--device_memory", "lots"}), HasSubstr("--device_memory: 'lots' is not a size"));
  EXPECT_THAT(train_error({"--compute_dtype", "bf61"}),
              AllOf(HasSubstr("'bf61' is none of auto, bf16, fp32"), HasSubstr("Did you mean bf16?")));
}

TEST(Help, ListsEveryVisibleOptionWithItsDefault) {
  const std::string text = help({"train", "--help"});
  EXPECT_THAT(
      text, AllOf(HasSubstr("Usage: finetune train --model DIR"), HasSubstr("--learning_rate X"),
                  HasSubstr("(default: 2e-5)"), HasSubstr("--lr_scheduler_type constant|linear|cosine"),
                  HasSubstr("(default: linear)"), HasSubstr("--device_memory SIZE"), HasSubstr("Optimizer")));
  EXPECT_THAT(text, Not(HasSubstr("delay_seed")));
  EXPECT_THAT(text, Not(HasSubstr("check_hazards")));
  EXPECT_EQ(help({"train", "-h"}), text);
  EXPECT_EQ(help(with(kTrain, {"--help"})), text);
}

TEST(Help, ExistsForEveryCommandAndForAll) {
  const std::string all = help({"--help"});
  for (const char* command : {"train", "plan", "eval", "generate", "import", "init", "tokenize"}) {
    EXPECT_THAT(all, HasSubstr(command));
    EXPECT_THAT(help({command, "--help"}), HasSubstr("Usage: finetune " + std::string(command)));
    EXPECT_EQ(help({"help", command}), help({command, "--help"}));
  }
}

TEST(OtherCommands, ReadTheirOptions) {
  const auto plan = parsed<PlanOptions>({"plan", "--model", "m", "--device_memory", "1GiB", "--json"});
  EXPECT_EQ(plan.train.model, "m");
  EXPECT_EQ(plan.train.engine.device_memory, 1u << 30);
  EXPECT_EQ(plan.train.data.data, "");
  EXPECT_TRUE(plan.json);
  EXPECT_THAT(usage_error({"plan", "--model", "m", "--gradient_shards", "2"}), HasSubstr("does not divide"));

  const auto eval =
      parsed<EvalOptions>({"eval", "--model", "m", "--data", "d", "--per_device_eval_batch_size", "4"});
  EXPECT_EQ(eval.per_device_eval_batch_size, 4);

  const auto tokenize = parsed<TokenizeOptions>({"tokenize", "model=m"});
  EXPECT_EQ(tokenize.model, "m");
}

TEST(OtherCommands, GenerateTakesSeveralPromptsOfAnyText) {
  const std::string odd = "a, b\nc=\"d\" é";
  const auto options = parsed<GenerateOptions>(
      {"generate", "--model", "m", "--prompt", odd, "--prompt=" + odd, "prompt=", "--max_new_tokens", "5"});
  EXPECT_EQ(options.prompts, (std::vector<std::string>{odd, odd, ""}));
  EXPECT_EQ(options.max_new_tokens, 5);
  EXPECT_THAT(usage_error({"generate", "--model", "m"}), HasSubstr("needs --prompt TEXT"));
}

TEST(OtherCommands, VersionIsAFlagOrACommand) {
  EXPECT_THAT(help({"--version"}), HasSubstr("finetune 0."));
  EXPECT_EQ(help({"version"}), help({"--version"}));
  EXPECT_EQ(help({"-V"}), help({"--version"}));
}

TEST(OtherCommands, InitReadsItsOptions) {
  const auto options = parsed<InitOptions>({"init", "--config", "c.json", "--output", "o", "--seed", "9",
                                            "--dtype", "fp32", "--max_shard_size", "2GB"});
  EXPECT_EQ(options.config, "c.json");
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.seed, 9u);
  EXPECT_EQ(options.dtype, DType::f32);
  EXPECT_EQ(options.max_shard_size, 2'000'000'000u);
  const auto defaults = parsed<InitOptions>({"init", "--config", "c.json", "--output", "o"});
  EXPECT_EQ(defaults.seed, 42u);
  EXPECT_FALSE(defaults.dtype.has_value());
  EXPECT_EQ(defaults.max_shard_size, 5'000'000'000u);
  EXPECT_THAT(usage_error({"init", "--output", "o"}), HasSubstr("needs --config FILE"));
}

TEST(OtherCommands, ImportTakesItsFileAsABareWord) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"import", "a=b.gguf", "--output", "o"},
                                             {"import", "--output", "o", "a=b.gguf"},
                                             {"import", "--file", "a=b.gguf", "output=o"}}) {
    const auto options = parsed<ImportOptions>(arguments);
    EXPECT_EQ(options.file, "a=b.gguf");
    EXPECT_EQ(options.output, "o");
  }
  EXPECT_THAT(usage_error({"import", "a.gguf"}), HasSubstr("needs --output DIR"));
}

}  // namespace
}  // namespace sluice::finetune
