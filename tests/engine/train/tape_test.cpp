#include "engine/train/tape.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "engine/base/math.h"

namespace sluice {
namespace {

PlanRequest request(Recompute recompute) {
  return {.tape = {{"layer 0", 300, 1000}, {"layer 1", 512, 0}, {"layer 2", 100, 700}},
          .micro_batch_count = 3,
          .fixed_parts = {{"in front", Tier::host, 100, 0}},
          .recompute = recompute,
          .alignment_bytes = 256};
}

using Range = std::pair<const std::byte*, const std::byte*>;

// Ranges are aligned, inside the plan's memory, and apart from one another.
void expect_apart(std::vector<Range> ranges, const std::byte* memory, size_t size_bytes) {
  std::erase_if(ranges, [](const Range& range) { return range.first == range.second; });
  std::sort(ranges.begin(), ranges.end());
  const std::byte* end = memory;
  for (const Range& range : ranges) {
    EXPECT_EQ((range.first - memory) % 256, 0);
    EXPECT_GE(range.first, end);
    end = range.second;
  }
  EXPECT_LE(end, memory + size_bytes);
}

Range range(const Tape::Range& of) {
  return {of.data, of.data + of.size_bytes};
}

TEST(Tape, KeptActivationsHaveAPlaceEach) {
  const PlanRequest needs = request(Recompute::none);
  const Plan plan = make_plan(needs);
  std::vector<std::byte> memory(plan.peak_bytes(Tier::device));
  const Tape tape(plan, needs, memory.data());
  std::vector<Range> ranges;
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_FALSE(tape.recomputes(layer));
    for (int batch = 0; batch < 3; ++batch) {
      const TapeLayerNeeds& bytes = needs.tape[static_cast<size_t>(layer)];
      EXPECT_EQ(tape.boundary(layer, batch).size_bytes, bytes.boundary_bytes);
      EXPECT_EQ(tape.saved(layer, batch).size_bytes, bytes.saved_bytes);
      ranges.push_back(range(tape.boundary(layer, batch)));
      ranges.push_back(range(tape.saved(layer, batch)));
    }
  }
  expect_apart(ranges, memory.data(), memory.size());
}

TEST(Tape, RecomputedActivationsShareOnePlace) {
  const PlanRequest needs = request(Recompute::all);
  const Plan plan = make_plan(needs);
  std::vector<std::byte> memory(plan.peak_bytes(Tier::device));
  const Tape tape(plan, needs, memory.data());
  std::vector<Range> ranges;
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(tape.recomputes(layer));
    for (int batch = 0; batch < 3; ++batch) {
      ranges.push_back(range(tape.boundary(layer, batch)));
      EXPECT_EQ(tape.saved(layer, batch).data, tape.saved(0, 0).data);
      EXPECT_EQ(tape.saved(layer, batch).size_bytes, needs.tape[static_cast<size_t>(layer)].saved_bytes);
    }
  }
  ranges.push_back(range(tape.saved(0, 0)));  // the largest
  expect_apart(ranges, memory.data(), memory.size());
}

TEST(Tape, SomeKeptAndSomeRecomputed) {
  PlanRequest needs = request(Recompute::automatic);
  needs.device_limit_bytes = make_plan(needs).peak_bytes(Tier::device) - 1;
  const Plan plan = make_plan(needs);
  ASSERT_EQ(plan.recomputed_count(), 1);
  std::vector<std::byte> memory(plan.peak_bytes(Tier::device));
  const Tape tape(plan, needs, memory.data());
  EXPECT_TRUE(tape.recomputes(0));
  EXPECT_FALSE(tape.recomputes(2));
  std::vector<Range> ranges{range(tape.saved(0, 0))};
  for (int batch = 0; batch < 3; ++batch) {
    ranges.push_back(range(tape.saved(2, batch)));
    for (int layer = 0; layer < 3; ++layer) ranges.push_back(range(tape.boundary(layer, batch)));
  }
  expect_apart(ranges, memory.data(), memory.size());
}

}  // namespace
}  // namespace sluice
