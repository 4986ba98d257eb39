#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/base/math.h"
#include "engine/schedule/plan.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

constexpr BlockId kA{0}, kB{1};

// Two blocks, forward and back, with numbers small enough to add up by hand.
PlanRequest training() {
  return {
      .blocks = {{.name = "a",
                  .fetch_bytes = 1000,
                  .plain_bytes = 100,
                  .forward_bytes = 600,
                  .backward_bytes = 700,
                  .gradient_bytes = 2000,
                  .gradient_copy_bytes = 1000,
                  .changes = true},
                 {.name = "b",
                  .fetch_bytes = 3000,
                  .plain_bytes = 0,
                  .forward_bytes = 1500,
                  .backward_bytes = 1500,
                  .gradient_bytes = 6000,
                  .gradient_copy_bytes = 3000,
                  .changes = true}},
      .accesses = {{.block = kA, .layouts = {.forward = true}, .tape_layer = 0},
                   {.block = kB, .layouts = {.forward = true}, .tape_layer = 1},
                   {.block = kB, .phase = Phase::backward, .layouts = {.backward = true}, .tape_layer = 1},
                   {.block = kA, .phase = Phase::backward, .layouts = {.backward = true}, .tape_layer = 0}},
      .tape = {{"layer 0", 300, 1000}, {"layer 1", 300, 500}},
      .micro_batch_count = 2,
      .gradients = true,
      .fixed_parts = {{"inputs", Tier::device, 10, 0}, {"process", Tier::host, 5000, 0}},
      .workspace_bytes = 777,
      .prefetch_distance = 1,
      .alignment_bytes = 256};
}

struct Expected {
  std::string name;
  size_t size_bytes;
  size_t offset;
};

void expect_device_parts(const Plan& plan, const std::vector<Expected>& expected) {
  size_t next = 0;
  for (const PlanPart& part : plan.parts) {
    if (part.tier != Tier::device) continue;
    ASSERT_LT(next, expected.size()) << part.name;
    EXPECT_EQ(part.name, expected[next].name);
    EXPECT_EQ(part.size_bytes, expected[next].size_bytes) << part.name;
    EXPECT_EQ(part.offset, expected[next].offset) << part.name;
    ++next;
  }
  EXPECT_EQ(next, expected.size());
}

TEST(Planner, StreamsEverythingByHand) {
  const Plan plan = make_plan(training());
  expect_device_parts(plan, {{"weights on their way in", 2 * 3072, 0},     // 3000, two on their way
                             {"prepared weights", 1536, 6144},             // b: 1500 in one direction
                             {"gradients", 2 * 6144, 7680},                // 6000
                             {"gradients on their way out", 6144, 19968},  // 3000, twice
                             {"layer inputs", 4 * 512, 26112},  // 300, two layers, two micro-batches
                             {"kept activations", 2 * 1024 + 2 * 512, 28160},
                             {"inputs", 256, 31232},
                             {"workspace", 1024, 31488}});
  EXPECT_EQ(plan.peak_bytes(Tier::device), 32512u);
  EXPECT_EQ(plan.peak_bytes(Tier::host), 5120u);
  EXPECT_EQ(plan.peak_bytes(Tier::disk), 0u);
  EXPECT_EQ(plan.copy_in_bytes_per_walk, 8000u);
  EXPECT_EQ(plan.copy_out_bytes_per_walk, 4000u);
  EXPECT_EQ(plan.landing_slot_count, 2);
  EXPECT_EQ(plan.landing_slot_bytes, 3072u);
  EXPECT_EQ(plan.ring_slot_count, 1);
  EXPECT_EQ(plan.gradient_slot_count, 2);
  EXPECT_EQ(plan.gradient_slot_bytes, 6144u);
  EXPECT_EQ(plan.recomputed_count(), 0);
  EXPECT_EQ(plan.boundary_offsets, (std::vector<size_t>{0, 1024}));
  EXPECT_EQ(plan.saved_offsets, (std::vector<size_t>{0, 2048}));
  for (const PlannedAccess& access : plan.accesses) {
    EXPECT_EQ(access.ring_slot, 0);
    EXPECT_EQ(access.kept_slot, -1);
    EXPECT_TRUE(access.fetch && access.fetch_again);
    EXPECT_EQ(access.layouts, access.access.layouts);
  }
}

TEST(Planner, GradientShardsMultiplyTheGradients) {
  PlanRequest request = training();
  request.gradient_shards = 4;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.part(plan_part::kGradients).size_bytes, 2u * 4 * 6144);
  EXPECT_EQ(plan.part(plan_part::kGradientCopies).size_bytes, 6144u) << "only their sum leaves";
}

TEST(Planner, OneGradientLeavesWhileOthersAreHeld) {
  PlanRequest request = training();
  request.concurrent_gradients = 3;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.gradient_slot_count, 4);
  EXPECT_EQ(plan.part(plan_part::kGradients).size_bytes, 4u * 6144);
  EXPECT_EQ(plan.part(plan_part::kGradientCopies).size_bytes, 4u * 3072);
}

TEST(Planner, GradientsInFp32LeaveFromWhereTheyAre) {
  PlanRequest request = training();
  for (BlockNeeds& block : request.blocks) block.gradient_copy_bytes = block.gradient_bytes;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.part(plan_part::kGradientCopies).size_bytes, 0u);
  EXPECT_EQ(plan.copy_out_bytes_per_walk, 8000u);
}

TEST(Planner, WithoutGradientsNoneArePlanned) {
  PlanRequest request = training();
  request.gradients = false;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.part(plan_part::kGradients).size_bytes, 0u);
  EXPECT_EQ(plan.gradient_slot_count, 0);
  EXPECT_EQ(plan.copy_out_bytes_per_walk, 0u);
}

TEST(Planner, RecomputesAllByHand) {
  PlanRequest request = training();
  request.recompute = Recompute::all;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.recomputed, (std::vector<bool>{true, true}));
  EXPECT_EQ(plan.part(plan_part::kSaved).size_bytes, 0u);
  EXPECT_EQ(plan.part(plan_part::kRecomputed).size_bytes, 1024u) << "the largest, once";
  EXPECT_EQ(plan.part(plan_part::kBoundaries).size_bytes, 2048u);
  // A backward lease recomputes first, so it needs both layouts: b has 3000 bytes of them.
  EXPECT_EQ(plan.part(plan_part::kRing).size_bytes, 3072u);
  EXPECT_EQ(plan.accesses[1].layouts, (LayoutSet{true, false}));
  EXPECT_EQ(plan.accesses[2].layouts, (LayoutSet{true, true}));
  EXPECT_EQ(plan.accesses[3].layouts, (LayoutSet{true, true}));
}

TEST(Planner, KeepsWeightsByHand) {
  PlanRequest request = training();
  request.keep_weights = true;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.part(plan_part::kKept).size_bytes, 1536u + 3072u);  // 1400 and 3000
  EXPECT_EQ(plan.part(plan_part::kRing).size_bytes, 0u);
  EXPECT_EQ(plan.kept_slot_offsets, (std::vector<size_t>{0, 1536}));
  EXPECT_EQ(plan.copy_in_bytes_per_walk, 4000u) << "once a walk each";
  EXPECT_EQ(plan.peak_bytes(Tier::device), 32512u - 1536 + 4608);
  const std::vector<bool> fetched{true, true, false, false};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.accesses[i].kept_slot, i == 0 || i == 3 ? 0 : 1);
    EXPECT_EQ(plan.accesses[i].fetch, fetched[i]);
    EXPECT_EQ(plan.accesses[i].fetch_again, fetched[i]) << "updated between walks";
    EXPECT_EQ(plan.accesses[i].layouts, (LayoutSet{true, true}));
  }
}

TEST(Planner, WhatNeverChangesIsFetchedOnce) {
  PlanRequest request = training();
  request.keep_weights = true;
  request.gradients = false;
  for (BlockNeeds& block : request.blocks) block.changes = false;
  request.accesses.resize(2);  // forward only
  request.tape.clear();
  for (Access& access : request.accesses) access.tape_layer = -1;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.copy_in_bytes_per_walk, 0u);
  for (const PlannedAccess& access : plan.accesses) {
    EXPECT_GE(access.kept_slot, 0);
    EXPECT_TRUE(access.fetch);
    EXPECT_FALSE(access.fetch_again);
  }
  // Where they change between walks, one use a walk is not worth a slot.
  for (BlockNeeds& block : request.blocks) block.changes = true;
  EXPECT_EQ(make_plan(request).part(plan_part::kKept).size_bytes, 0u);
}

// Each limit is one byte below the peak of the choice before it.
TEST(Planner, GivesUpKeptWeightsThenActivationsThenPrefetch) {
  PlanRequest request = training();
  request.keep_weights = true;
  struct Step {
    size_t peak, kept, recomputed;
    int distance;
  };
  const std::vector<Step> steps{
      {35584, 4608, 0, 1},  // everything
      {34048, 1536, 0, 1},  // b streams: 3072 less, a ring slot of 1536 more
      {32512, 0, 0, 1},     // a streams
      {31488, 0, 1, 1},     // layer 0 recomputed: 2048 kept bytes less, 1024 recomputed more
      {28928, 0, 2, 0},     // layer 1 too costs a ring slot of 3072, so this one needs the prefetch as well
  };
  EXPECT_EQ(least_device_bytes(request), steps.back().peak);
  for (size_t i = 0; i < steps.size(); ++i) {
    request.device_limit_bytes = i == 0 ? steps[0].peak : steps[i - 1].peak - 1;
    const Plan plan = make_plan(request);
    EXPECT_EQ(plan.peak_bytes(Tier::device), steps[i].peak);
    EXPECT_EQ(plan.part(plan_part::kKept).size_bytes, steps[i].kept);
    EXPECT_EQ(plan.recomputed_count(), static_cast<int>(steps[i].recomputed));
    EXPECT_EQ(plan.prefetch_distance, steps[i].distance);
  }
}

TEST(Planner, RefusesOneByteLessAndNamesTheLeast) {
  PlanRequest request = training();
  const size_t least = least_device_bytes(request);
  request.device_limit_bytes = least;
  EXPECT_EQ(make_plan(request).peak_bytes(Tier::device), least);
  request.device_limit_bytes = least - 1;
  test::expect_error(ErrorKind::resource, {std::to_string(least) + " bytes", "--device_memory 1MiB"},
                     [&] { (void)make_plan(request); });
  request.device_limit_bytes = 0;
  EXPECT_THROW((void)make_plan(request), Error);
}

TEST(Planner, RecomputeNoneIsObeyed) {
  PlanRequest request = training();
  request.recompute = Recompute::none;
  EXPECT_EQ(least_device_bytes(request), 32512u - 3072) << "only the prefetch is given up";
  request.device_limit_bytes = 31488;
  EXPECT_EQ(make_plan(request).recomputed_count(), 0);
}

TEST(Planner, SeveralLeasesAtATime) {
  PlanRequest request = training();
  request.concurrent_leases = 3;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.ring_slot_count, 3);
  EXPECT_EQ(plan.part(plan_part::kRing).size_bytes, 3u * 1536);
  EXPECT_EQ(plan.accesses[0].ring_slot, 0);
  EXPECT_EQ(plan.accesses[1].ring_slot, 1);
  EXPECT_EQ(plan.accesses[2].ring_slot, 2);
  EXPECT_EQ(plan.accesses[3].ring_slot, 0);
}

// A kept block's accesses must agree on where its layouts lie: with what recomputing adds, too.
TEST(Planner, KeptAccessesOfABlockHaveTheSameLayouts) {
  PlanRequest request = training();
  request.keep_weights = true;
  request.recompute = Recompute::all;
  request.accesses = {
      {.block = kA, .phase = Phase::turnaround, .layouts = {.backward = true}},
      {.block = kA, .phase = Phase::backward, .layouts = {.backward = true}, .tape_layer = 0}};
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.accesses[0].layouts, plan.accesses[1].layouts);
  EXPECT_EQ(plan.part(plan_part::kKept).size_bytes, 1536u);  // 100 + 600 + 700
}

TEST(Planner, UnknownPartsAreEmpty) {
  EXPECT_EQ(make_plan(training()).part("no such part").size_bytes, 0u);
}

TEST(Planner, NothingNeedsNothing) {
  const Plan plan = make_plan({});
  EXPECT_TRUE(plan.parts.empty());
  EXPECT_EQ(least_device_bytes({}), 0u);
}

PlanRequest random_request(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](size_t limit) { return static_cast<size_t>(random()) % limit; };
  PlanRequest request{.micro_batch_count = 1 + static_cast<int>(draw(3)),
                      .gradient_shards = 1 + static_cast<int>(draw(3)),
                      .gradients = draw(2) == 0,
                      .workspace_bytes = draw(5000),
                      .prefetch_distance = static_cast<int>(draw(4)),
                      .concurrent_leases = 1 + static_cast<int>(draw(3)),
                      .keep_weights = draw(2) == 0,
                      .recompute = static_cast<Recompute>(draw(3)),
                      .alignment_bytes = draw(2) == 0 ? size_t{256} : size_t{4096}};
  const int block_count = 1 + static_cast<int>(draw(6));
  const int layer_count = static_cast<int>(draw(5));
  for (int block = 0; block < block_count; ++block) {
    const size_t gradient = draw(2) * draw(20000);
    request.blocks.push_back({.name = "block " + std::to_string(block),
                              .fetch_bytes = draw(30000),
                              .plain_bytes = draw(2000),
                              .forward_bytes = draw(30000),
                              .backward_bytes = draw(30000),
                              .gradient_bytes = gradient,
                              .gradient_copy_bytes = draw(2) == 0 ? gradient : gradient / 2,
                              .changes = draw(2) == 0});
  }
  for (int layer = 0; layer < layer_count; ++layer) {
    request.tape.push_back({"layer " + std::to_string(layer), draw(9000), draw(90000)});
  }
  for (size_t access = draw(12); access > 0; --access) {
    request.accesses.push_back(
        {.block = BlockId{static_cast<int32_t>(draw(static_cast<size_t>(block_count)))},
         .phase = static_cast<Phase>(draw(3)),
         .layouts = {draw(2) == 0, draw(2) == 0},
         .tape_layer = static_cast<int>(draw(static_cast<size_t>(layer_count) + 1)) - 1});
  }
  for (size_t part = draw(4); part > 0; --part) {
    request.fixed_parts.push_back(
        {"part " + std::to_string(part), static_cast<Tier>(draw(3)), draw(10000), 0});
  }
  return request;
}

// What every plan must hold, whatever it chose.
void expect_sound(const PlanRequest& request, const Plan& plan) {
  const size_t alignment = request.alignment_bytes;
  std::map<size_t, size_t> placed;
  size_t sum = 0;
  for (const PlanPart& part : plan.parts) {
    EXPECT_EQ(part.size_bytes % alignment, 0u) << part.name;
    if (part.tier != Tier::device) continue;
    EXPECT_EQ(part.offset % alignment, 0u) << part.name;
    EXPECT_TRUE(placed.emplace(part.offset, part.size_bytes).second) << part.name;
    sum += part.size_bytes;
  }
  size_t end = 0;
  for (const auto& [offset, size] : placed) {
    EXPECT_EQ(offset, end) << "parts overlap, or leave a hole";
    end = offset + size;
  }
  EXPECT_EQ(sum, plan.peak_bytes(Tier::device));
  EXPECT_EQ(end, sum);

  ASSERT_EQ(plan.accesses.size(), request.accesses.size());
  std::map<int, BlockId> block_of_slot;
  std::map<int, LayoutSet> layouts_of_slot;
  size_t copied = 0;
  for (size_t i = 0; i < plan.accesses.size(); ++i) {
    const PlannedAccess& access = plan.accesses[i];
    const BlockNeeds& needs = request.blocks[static_cast<size_t>(access.access.block.value)];
    EXPECT_NE(access.kept_slot >= 0, access.ring_slot >= 0) << "in one place";
    EXPECT_EQ(access.layouts | access.access.layouts, access.layouts) << "what was asked for is there";
    const int layer = access.access.tape_layer;
    if (access.access.phase == Phase::backward && layer >= 0 && plan.recomputed[static_cast<size_t>(layer)]) {
      EXPECT_TRUE(access.layouts.forward);
    }
    if (access.fetch) {
      EXPECT_LE(needs.fetch_bytes, plan.landing_slot_bytes);
    }
    if (access.fetch_again) copied += needs.fetch_bytes;
    EXPECT_TRUE(access.fetch || !access.fetch_again);
    const size_t prepared = needs.prepared_bytes(access.layouts);
    if (access.ring_slot >= 0) {
      EXPECT_TRUE(access.fetch && access.fetch_again);
      EXPECT_LT(access.ring_slot, plan.ring_slot_count);
      EXPECT_LE(prepared, plan.ring_slot_bytes);
      continue;
    }
    EXPECT_EQ(block_of_slot.try_emplace(access.kept_slot, access.access.block).first->second,
              access.access.block);
    EXPECT_EQ(layouts_of_slot.try_emplace(access.kept_slot, access.layouts).first->second, access.layouts);
    const size_t slot = static_cast<size_t>(access.kept_slot);
    const size_t slot_end = slot + 1 < plan.kept_slot_offsets.size() ? plan.kept_slot_offsets[slot + 1]
                                                                     : plan.part(plan_part::kKept).size_bytes;
    EXPECT_LE(plan.kept_slot_offsets[slot] + prepared, slot_end);
  }
  EXPECT_EQ(copied, plan.copy_in_bytes_per_walk);

  const size_t micro_batches = static_cast<size_t>(request.micro_batch_count);
  for (size_t layer = 0; layer < request.tape.size(); ++layer) {
    const TapeLayerNeeds& needs = request.tape[layer];
    EXPECT_LE(plan.boundary_offsets[layer] + round_up(needs.boundary_bytes, alignment) * micro_batches,
              plan.part(plan_part::kBoundaries).size_bytes);
    if (plan.recomputed[layer]) {
      EXPECT_LE(needs.saved_bytes, plan.part(plan_part::kRecomputed).size_bytes);
    } else {
      EXPECT_LE(plan.saved_offsets[layer] + round_up(needs.saved_bytes, alignment) * micro_batches,
                plan.part(plan_part::kSaved).size_bytes);
    }
  }
}

TEST(Planner, RandomRequestsUnderEveryLimit) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PlanRequest request = random_request(seed);
    const Plan unlimited = make_plan(request);
    expect_sound(request, unlimited);
    const size_t least = least_device_bytes(request);
    const size_t most = std::max(least, unlimited.peak_bytes(Tier::device));
    EXPECT_LE(least, unlimited.peak_bytes(Tier::device));
    int recomputed = request.tape.empty() ? 0 : static_cast<int>(request.tape.size());
    int distance = 0;
    size_t kept_slots = 0;
    for (int step = 0; step <= 16; ++step) {
      request.device_limit_bytes = least + (most - least) * static_cast<size_t>(step) / 16;
      const Plan plan = make_plan(request);
      expect_sound(request, plan);
      EXPECT_LE(plan.peak_bytes(Tier::device), *request.device_limit_bytes);
      EXPECT_LE(plan.recomputed_count(), recomputed) << "more memory must not give up more";
      EXPECT_GE(plan.prefetch_distance, distance);
      EXPECT_GE(plan.kept_slot_offsets.size(), kept_slots);
      recomputed = plan.recomputed_count();
      distance = plan.prefetch_distance;
      kept_slots = plan.kept_slot_offsets.size();
    }
    if (least > 0) {
      request.device_limit_bytes = least - 1;
      test::expect_error(ErrorKind::resource, {"(" + std::to_string(least) + " bytes)"},
                         [&] { (void)make_plan(request); });
    }
    if (testing::Test::HasFailure()) return;
  }
}

// The same with a disk: what each tier holds of the blocks.
PlanRequest on_three_tiers() {
  PlanRequest request = training();
  request.disk = true;
  request.update_slot_bytes = 512;
  const size_t weights[] = {1000, 3000}, moments[] = {2000, 6000}, waiting[] = {500, 1500};
  for (size_t i = 0; i < 2; ++i) {
    request.blocks[i].weight_bytes = request.blocks[i].updated_weight_bytes = weights[i];
    request.blocks[i].moment_bytes = moments[i];
    request.blocks[i].waiting_bytes = waiting[i];
  }
  return request;
}

TEST(PlannerTiers, KeepsAllInTheHostTierWithoutALimit) {
  const Plan plan = make_plan(on_three_tiers());
  EXPECT_EQ(plan.homes, std::vector<BlockHome>(2));
  EXPECT_EQ(plan.part(plan_part::kWeights).size_bytes, 1024u + 3072u);
  EXPECT_EQ(plan.part(plan_part::kMoments).size_bytes, 2048u + 6144u);
  EXPECT_EQ(plan.part(plan_part::kWaiting).size_bytes, 512u + 1536u);
  EXPECT_EQ(plan.part(plan_part::kUpdate).size_bytes, 0u);
  EXPECT_EQ(plan.part(plan_part::kStaging).size_bytes, 0u);
  EXPECT_EQ(plan.disk_read_bytes_per_walk + plan.disk_write_bytes_per_walk, 0u);
}

TEST(PlannerTiers, EverythingOnDiskByHand) {
  PlanRequest request = on_three_tiers();
  request.spill = Spill::everything;
  request.layer_inputs = LayerInputs::device;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.homes, std::vector<BlockHome>(2, BlockHome{Tier::disk, Tier::disk, Tier::disk}));
  EXPECT_EQ(plan.part(plan_part::kUpdate).size_bytes, 8u * 512);
  EXPECT_EQ(plan.part(plan_part::kStaging).size_bytes, 4u * 3072) << "one in use, one copied, two read ahead";
  EXPECT_EQ(plan.part(plan_part::kGradientStaging).size_bytes, 2u * 1536);
  EXPECT_EQ(plan.peak_bytes(Tier::host), 5120u + 4096u + 12288u + 3072u) << "the process and these";
  EXPECT_EQ(plan.disk_read_bytes_per_walk, 8000u + 4000u + 8000u + 2000u) << "leases; then the update";
  EXPECT_EQ(plan.disk_write_bytes_per_walk, 4000u + 8000u + 2000u);
}

// Each limit is what the plan before needed, less a byte: the order of what is given up.
TEST(PlannerTiers, MovesMomentsThenGradientsThenWeights) {
  PlanRequest request = on_three_tiers();
  request.layer_inputs = LayerInputs::device;
  const auto rank = [](const Plan& plan) {
    const auto on_disk = [&](Tier BlockHome::*what) {
      return std::ranges::count_if(plan.homes,
                                   [&](const BlockHome& home) { return home.*what == Tier::disk; });
    };
    return std::array{on_disk(&BlockHome::moments), on_disk(&BlockHome::gradient),
                      on_disk(&BlockHome::weights), ptrdiff_t{-plan.update_slot_count},
                      ptrdiff_t{-plan.read_ahead}};
  };
  Plan plan = make_plan(request);
  std::array<ptrdiff_t, 5> last{};
  last[3] = -100;
  last[4] = -100;
  for (;;) {
    request.host_limit_bytes = plan.peak_bytes(Tier::host) - 1;
    try {
      const Plan next = make_plan(request);
      EXPECT_LE(next.peak_bytes(Tier::host), *request.host_limit_bytes);
      EXPECT_LE(next.peak_bytes(Tier::device), plan.peak_bytes(Tier::device));
      const auto now = rank(next);
      for (size_t i = 0; i < 3; ++i) EXPECT_GE(now[i], last[i]);
      EXPECT_TRUE(now[1] == 0 || now[0] == 2);
      EXPECT_TRUE(now[2] == 0 || now[1] == 2);
      EXPECT_TRUE(next.homes[0].moments == Tier::host || next.homes[1].moments == Tier::disk)
          << "the last first";
      last = now;
      plan = next;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(least_host_bytes(request))), std::string::npos)
          << error.what();
      break;
    }
  }
  request.host_limit_bytes = least_host_bytes(request);
  EXPECT_EQ(make_plan(request).peak_bytes(Tier::host), *request.host_limit_bytes);
}

TEST(PlannerTiers, WithoutADiskAHostLimitCanOnlyRefuse) {
  PlanRequest request = on_three_tiers();
  request.disk = false;
  const size_t all = make_plan(request).peak_bytes(Tier::host);
  request.host_limit_bytes = all;
  EXPECT_EQ(make_plan(request).peak_bytes(Tier::host), all);
  request.host_limit_bytes = all - 1;
  test::expect_error(ErrorKind::resource,
                     {"host limit", std::to_string(all) + " bytes", "--host_memory", "--spill_dir"},
                     [&] { make_plan(request); });
}

TEST(PlannerTiers, AGradientThatGetsRowsStays) {
  PlanRequest request = on_three_tiers();
  request.spill = Spill::everything;
  request.blocks[0].gradient_stays = true;
  const Plan plan = make_plan(request);
  EXPECT_EQ(plan.homes[0].gradient, Tier::host);
  EXPECT_EQ(plan.part(plan_part::kWaiting).size_bytes, 512u);
}

TEST(PlannerTiers, LayerInputsLeaveWhereTheDeviceIsTooSmall) {
  PlanRequest request = on_three_tiers();
  request.tape = {};
  for (int layer = 0; layer < 6; ++layer) request.tape.push_back({"layer", 1000, 0});
  const Plan stays = make_plan(request);
  EXPECT_EQ(stays.boundary_tier, Tier::device);
  EXPECT_EQ(stays.part(plan_part::kBoundaries).size_bytes, 6u * 2 * 1024);
  request.device_limit_bytes = stays.peak_bytes(Tier::device) - 1;
  const Plan leaves = make_plan(request);
  EXPECT_EQ(leaves.boundary_tier, Tier::host);
  EXPECT_EQ(leaves.part(plan_part::kBoundaries).size_bytes, 3u * 2 * 1024);
  EXPECT_EQ(leaves.part(plan_part::kBoundaryStore).size_bytes, 3u * 2 * 1024);
  EXPECT_EQ(leaves.input_copy_bytes_per_walk, 3u * 2 * 1024);
  EXPECT_EQ(leaves.boundary_offsets, (std::vector<size_t>{0, 2048, 4096, 0, 2048, 4096}));
  request.layer_inputs = LayerInputs::disk;
  const Plan disk = make_plan(request);
  EXPECT_EQ(disk.boundary_tier, Tier::disk);
  EXPECT_EQ(disk.part(plan_part::kBoundaryStore).size_bytes, 2u * 2 * 1024);
  EXPECT_EQ(disk.disk_write_bytes_per_walk, 3u * 2 * 1024);
  request.layer_inputs = LayerInputs::device;
  const Plan kept = make_plan(request);
  EXPECT_EQ(kept.boundary_tier, Tier::device);
  EXPECT_EQ(kept.prefetch_distance, 0) << "what else there is to give up";
}

}  // namespace
}  // namespace sluice
