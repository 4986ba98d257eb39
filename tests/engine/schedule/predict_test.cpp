#include "engine/schedule/predict.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

constexpr Lane kLanes[] = {Lane::compute,   Lane::copy_in,    Lane::copy_out,
                           Lane::disk_read, Lane::disk_write, Lane::optimizer};

// 30 parameters, all sizes by hand: 0.5 s each way over a link of 20 bytes a second.
BlockNeeds block(const char* name) {
  return {.name = name,
          .fetch_bytes = 10,
          .gradient_bytes = 120,
          .gradient_copy_bytes = 10,
          .changes = true,
          .element_count = 30,
          .weight_bytes = 120,
          .updated_weight_bytes = 120,
          .moment_bytes = 240,
          .waiting_bytes = 10};
}

PlanRequest two_blocks() {
  PlanRequest request{.blocks = {block("A"), block("B")},
                      .accesses = {{BlockId{0}, Phase::forward},
                                   {BlockId{1}, Phase::forward},
                                   {BlockId{1}, Phase::backward},
                                   {BlockId{0}, Phase::backward}},
                      .gradients = true,
                      .disk = true,
                      .update_slot_bytes = 480,  // 30 parameters at 16 bytes
                      .alignment_bytes = 1};
  return request;
}

WalkCosts costs() {
  return {.prepare_seconds = {0, 0, 0, 0},
          .access_seconds = {1, 1, 2, 2},
          .update_order = {BlockId{0}, BlockId{1}}};
}

LaneRates rates() {
  return {.copy_in_bytes_per_second = 20,
          .copy_out_bytes_per_second = 20,
          .optimizer_parameters_per_second = 10,
          .norm_bytes_per_second = 40};
}

// The norm is known at 0. A is updated until 3 and copied until 3.5; B until 6 and 6.5. Forward of B then
// takes until 7.5, backward until 9.5 and 11.5; A's gradient leaves until 12 and is squared until 12.25.
TEST(Predict, UpdatesHoldUpTheNextForwardBlockByBlock) {
  const PlanRequest request = two_blocks();
  const Prediction found = predict(make_plan(request), request.blocks, costs(), rates());
  EXPECT_DOUBLE_EQ(found.step_seconds, 12.25);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::compute], 6);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::copy_in], 2);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::copy_out], 1);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::optimizer], 6.5);
  EXPECT_DOUBLE_EQ(found.bytes[Lane::copy_in], 40);
  EXPECT_DOUBLE_EQ(found.bytes[Lane::copy_out], 20);
  EXPECT_EQ(found.bottleneck, "optimizer");
}

// Moments on disk. A's and B's lie in the slots when the norm is known, at 0: A is updated until 0.5 and
// written until 2.5; only then B is updated, until 3, and written until 5: forward of B until 6.5, backward
// until 8.5 and 10.5, A's gradient until 11 and its norm until 11.25. Meanwhile the next ones are read.
TEST(Predict, StatesPassThroughTheDisk) {
  PlanRequest request = two_blocks();
  request.spill = Spill::moments;
  LaneRates fast = rates();
  fast.optimizer_parameters_per_second = 60;
  fast.disk_read_bytes_per_second = 240;
  fast.disk_write_bytes_per_second = 120;
  const Prediction found = predict(make_plan(request), request.blocks, costs(), fast);
  EXPECT_DOUBLE_EQ(found.step_seconds, 11.25);
  EXPECT_DOUBLE_EQ(found.bytes[Lane::disk_read], 480);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::disk_read], 2);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::disk_write], 4);
}

// Half read and half written at 120 bytes a second, where taking turns would give 160: all of it takes 4/3.
TEST(Predict, MixedTrafficIsSlowerByWhatWasMeasured) {
  PlanRequest request = two_blocks();
  request.spill = Spill::moments;
  LaneRates fast = rates();
  fast.disk_read_bytes_per_second = 240;
  fast.disk_write_bytes_per_second = 120;
  fast.disk_mixed_bytes_per_second = 120;
  const Prediction found = predict(make_plan(request), request.blocks, costs(), fast);
  EXPECT_NEAR(found.busy_seconds[Lane::disk_read], 2 * 4.0 / 3, 1e-9);
  EXPECT_NEAR(found.busy_seconds[Lane::disk_write], 4 * 4.0 / 3, 1e-9);
}

TEST(Predict, WhereTheDeviceIsTheProcessorAllTakesTurns) {
  const PlanRequest request = two_blocks();
  LaneRates slow = rates();
  slow.processors = Processors::one;
  const Prediction found = predict(make_plan(request), request.blocks, costs(), slow);
  EXPECT_DOUBLE_EQ(found.step_seconds, 6 + 2 + 1 + 6.5);
}

TEST(Predict, RowsOfTheEmbeddingComeAfterItsUpdate) {
  PlanRequest request = two_blocks();
  request.blocks.push_back({.name = "E",
                            .element_count = 30,
                            .weight_bytes = 120,
                            .updated_weight_bytes = 120,
                            .moment_bytes = 240,
                            .waiting_bytes = 120,
                            .gradient_stays = true});
  WalkCosts with_rows = costs();
  with_rows.row_blocks = {BlockId{2}};
  with_rows.update_order = {BlockId{0}, BlockId{1}, BlockId{2}};
  const Prediction last = predict(make_plan(request), request.blocks, with_rows, rates());
  with_rows.update_order = {BlockId{2}, BlockId{0}, BlockId{1}};
  const Prediction first = predict(make_plan(request), request.blocks, with_rows, rates());
  // E's update goes first and holds up all else for 3 s; its gradient is squared behind the walk, for 3 s.
  EXPECT_DOUBLE_EQ(first.step_seconds, 12.25 + 3 + 3);
  EXPECT_GT(last.step_seconds, first.step_seconds);
}

// 40 bytes of rows at 20 a second, by one thread at 80: gathered (read and written) in 1 s and copied in 2;
// their gradients come back in 2 s, are added (read twice, written once) in 1.5, and all of E's is read and
// written once more in 3. The trainer packs 10 tokens in 0.5 s before.
TEST(Predict, RowsPassThroughOneThread) {
  const BlockNeeds rows{.name = "E",
                        .element_count = 30,
                        .weight_bytes = 120,
                        .updated_weight_bytes = 120,
                        .moment_bytes = 240,
                        .waiting_bytes = 120,
                        .gradient_stays = true};
  PlanRequest request{.blocks = {rows}, .alignment_bytes = 1};
  WalkCosts with_rows{.input_tokens = 10,
                      .row_bytes = 40,
                      .row_gradient_bytes = 40,
                      .row_block_passes = 2,
                      .row_blocks = {BlockId{0}},
                      .update_order = {BlockId{0}}};
  LaneRates one_thread = rates();
  one_thread.thread_bytes_per_second = 80;
  one_thread.input_tokens_per_second = 20;
  const Prediction found = predict(make_plan(request), request.blocks, with_rows, one_thread);
  // E's update takes 3 s from the norm on, the trainer's 0.5 pass meanwhile.
  EXPECT_DOUBLE_EQ(found.step_seconds, 3 + 1 + 2 + 2 + 1.5 + 3 + 3);
  EXPECT_DOUBLE_EQ(found.busy_seconds[Lane::compute], 0.5);
}

// A training walk over blocks of random sizes under random limits.
struct Trial {
  PlanRequest request;
  WalkCosts costs;
  LaneRates rates;
};

Trial random_trial(std::mt19937& random) {
  const auto upto = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  const auto rate = [&] { return std::uniform_real_distribution<double>(1e3, 1e6)(random); };
  Trial trial;
  const int layers = 1 + upto(6);
  for (int i = 0; i < layers; ++i) {
    const size_t elements = static_cast<size_t>(256 * (1 + upto(20)));
    BlockNeeds needs{.name = "layer " + std::to_string(i),
                     .fetch_bytes = elements * 2,
                     .plain_bytes = elements * 2,
                     .gradient_bytes = elements * 4,
                     .gradient_copy_bytes = elements * 2,
                     .changes = true,
                     .element_count = static_cast<int64_t>(elements),
                     .weight_bytes = elements * 4,
                     .updated_weight_bytes = elements * 4,
                     .moment_bytes = elements * 8,
                     .waiting_bytes = elements * 2};
    trial.request.blocks.push_back(needs);
    trial.request.tape.push_back({needs.name, static_cast<size_t>(64 * (1 + upto(9))), 4096});
    trial.request.accesses.push_back({BlockId{i}, Phase::forward, {}, {}, i});
    trial.costs.update_order.push_back(BlockId{i});
  }
  for (int i = layers - 1; i >= 0; --i)
    trial.request.accesses.push_back({BlockId{i}, Phase::backward, {}, {}, i});
  trial.request.gradients = true;
  trial.request.disk = true;
  trial.request.spill = static_cast<Spill>(upto(3));
  trial.request.layer_inputs = static_cast<LayerInputs>(upto(3));
  trial.request.prefetch_distance = upto(3);
  trial.request.update_slot_bytes = static_cast<size_t>(16 * 256 * (1 + upto(8)));
  trial.request.keep_weights = upto(1) == 1;
  trial.request.alignment_bytes = 64;
  for (size_t i = 0; i < trial.request.accesses.size(); ++i) {
    trial.costs.prepare_seconds.push_back(0.01 * upto(9));
    trial.costs.access_seconds.push_back(0.1 * upto(9));
  }
  trial.rates = {rate(), rate(), rate(), rate(), 0, rate(), rate(), rate()};
  if (upto(3) == 0) trial.rates.processors = Processors::one;
  return trial;
}

TEST(Predict, HoldsForRandomPlans) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const Trial trial = random_trial(random);
    const Plan plan = make_plan(trial.request);
    const Prediction found = predict(plan, trial.request.blocks, trial.costs, trial.rates);
    const double allowed = found.step_seconds * (1 + 1e-9);
    double critical = 0, processor = 0;
    for (const Lane lane : kLanes) {
      EXPECT_LE(found.busy_seconds[lane], allowed) << name(lane);
      critical += found.critical_seconds[lane];
      if (lane != Lane::disk_read && lane != Lane::disk_write) processor += found.busy_seconds[lane];
    }
    EXPECT_NEAR(critical, found.step_seconds, 1e-9 * found.step_seconds);
    EXPECT_LE(found.busy_seconds[Lane::disk_read] + found.busy_seconds[Lane::disk_write], allowed);
    if (trial.rates.processors == Processors::one) {
      EXPECT_LE(processor, allowed);
    }
    // What moves is what the plan says.
    const auto moved = [&](Lane lane) { return static_cast<size_t>(found.bytes[lane] + 0.5); };
    EXPECT_EQ(moved(Lane::copy_in), plan.copy_in_bytes_per_walk + plan.input_copy_bytes_per_walk);
    EXPECT_EQ(moved(Lane::copy_out), plan.copy_out_bytes_per_walk + plan.input_copy_bytes_per_walk);
    EXPECT_EQ(moved(Lane::disk_read), plan.disk_read_bytes_per_walk);
    EXPECT_EQ(moved(Lane::disk_write), plan.disk_write_bytes_per_walk);
  }
}

// Nothing becomes slower where a lane becomes faster by much; compute alone is the limit.
TEST(Predict, InfinitelyFastLanesLeaveCompute) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    Trial trial = random_trial(random);
    trial.rates = {};
    const Prediction found =
        predict(make_plan(trial.request), trial.request.blocks, trial.costs, trial.rates);
    EXPECT_NEAR(found.step_seconds, found.busy_seconds[Lane::compute], 1e-9);
  }
}

}  // namespace
}  // namespace sluice
