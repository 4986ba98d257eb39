#include "apps/finetune/machine_rates.h"

#include <gtest/gtest.h>

#include "apps/finetune/runtime.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace sluice::finetune {
namespace {

MachineRates some_rates() {
  return {.ops = {{"linear_forward", 4e11}, {"add", 5e10}},
          .copy_bytes_per_second = 1e10,
          .optimizer_parameters_per_second = 1e9,
          .norm_bytes_per_second = 2e10,
          .checksum_bytes_per_second = 1.5e10,
          .thread_bytes_per_second = 1e10,
          .input_tokens_per_second = 1e7};
}

TEST(MachineRates, AreKeptByKey) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "cache" / "machine.json";
  EXPECT_FALSE(load_machine_rates(file, "a"));
  save_machine_rates(file, "a", some_rates());
  MachineRates other = some_rates();
  other.ops["add"] = 6e10;
  save_machine_rates(file, "b", other);
  EXPECT_EQ(load_machine_rates(file, "a")->ops, some_rates().ops);
  EXPECT_EQ(load_machine_rates(file, "b")->ops.at("add"), 6e10);
  EXPECT_EQ(load_machine_rates(file, "a")->norm_bytes_per_second, 2e10);
  EXPECT_FALSE(load_machine_rates(file, "c"));
  EXPECT_FALSE(load_machine_rates({}, "a"));
}

TEST(MachineRates, WhatIsDamagedOrUnlikelyIsNotBelieved) {
  const test::TemporaryFolder folder;
  const std::filesystem::path file = folder / "machine.json";
  MachineRates rates = some_rates();
  rates.ops["add"] = -1;
  save_machine_rates(file, "a", rates);
  EXPECT_FALSE(load_machine_rates(file, "a"));
  for (const char* text : {"", "{", "[]", "{\"version\": 2}", "{\"version\": 2, \"machines\": {\"a\": 3}}",
                           "{\"version\": 2, \"machines\": 4}", "{\"version\": 1, \"machines\": {}}"}) {
    test::write_all(file, text);
    EXPECT_FALSE(load_machine_rates(file, "a")) << text;
  }
}

TEST(MachineRates, KnowEveryOpOfAStep) {
  const Runtime runtime = make_runtime({.thread_count = 1});
  const MachineRates rates =
      measure_machine(*runtime.device, *runtime.pool, {test::tiny_config(true), DType::f32, DType::f32});
  for (const char* op : {"linear_forward", "linear_backward_input", "linear_backward_weight", "linear_pack",
                         "attention_forward", "attention_backward", "rope", "rms_norm_forward",
                         "rms_norm_backward", "swiglu_forward", "swiglu_backward", "log_sum_exp_update",
                         "cross_entropy_backward", "cast", "add", "join_split"}) {
    ASSERT_TRUE(rates.ops.contains(op)) << op;
    EXPECT_GT(rates.ops.at(op), 0) << op;
  }
  EXPECT_GT(rates.copy_bytes_per_second, 0);
  EXPECT_GT(rates.optimizer_parameters_per_second, 0);
  EXPECT_GT(rates.thread_bytes_per_second, 0);
  EXPECT_GT(rates.input_tokens_per_second, 0);
}

}  // namespace
}  // namespace sluice::finetune
