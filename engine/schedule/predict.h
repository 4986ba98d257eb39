#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "engine/schedule/plan.h"
#include "engine/schedule/simulate.h"

// What a training step will take: the plan and the order in which the engine submits a walk's work, as tasks
// for simulate(). Pure.
namespace sluice {

// How fast each lane is. A rate of 0 takes no time.
struct LaneRates {
  double copy_in_bytes_per_second = 0;
  double copy_out_bytes_per_second = 0;
  // Of all spill drives together; alone, alone, and the sum of both directions where half is read and half is
  // written at once. Without the last one mixing costs nothing.
  double disk_read_bytes_per_second = 0;
  double disk_write_bytes_per_second = 0;
  double disk_mixed_bytes_per_second = 0;
  // Of the host, with all threads of the pool.
  double optimizer_parameters_per_second = 0;
  double norm_bytes_per_second = 0;
  double checksum_bytes_per_second = 0;  // of one thread
  // Of one thread that reads and writes memory, both counted: gathering rows, adding and rounding their
  // gradients.
  double thread_bytes_per_second = 0;
  double input_tokens_per_second = 0;  // of one thread that packs a step's inputs
  // Of one core, by transfers, the kernel's part included.
  double disk_cpu_seconds_per_byte = 0;
  int thread_count = 1;
  Processors processors = Processors::apart;
};

// What a plan does not know of its walk.
struct WalkCosts {
  std::vector<double> prepare_seconds;  // by access: from what was copied in to what a lease offers
  std::vector<double> access_seconds;   // by access: what is computed under its lease
  double input_tokens = 0;              // packed by the trainer's thread before it begins the walk
  double begin_seconds = 0;             // computed before the first access
  double end_seconds = 0;               // and after the last
  size_t input_bytes = 0;               // copied in at the beginning
  size_t row_bytes = 0;                 // likewise: rows of the embedding, after the updates of row_blocks
  size_t row_disk_bytes = 0;            // of these blocks, read for the rows
  size_t row_gradient_bytes = 0;        // copied out at the end
  int row_block_passes = 0;             // of one thread over a row block's gradient: readings and writings
  std::vector<BlockId> row_blocks;      // rows come from them, and rows are added to their gradients
  std::vector<BlockId> update_order;
};

struct Prediction {
  // In the steady state, per step.
  double step_seconds = 0;
  PerLane<double> busy_seconds;
  PerLane<double> critical_seconds;  // they add up to step_seconds
  PerLane<double> bytes;             // moved; optimizer: states and gradients read and written
  // What most of the critical path is of: a lane by name, or "disk", both directions.
  std::string_view bottleneck;
  // What was simulated.
  std::vector<SimTask> tasks;
  Processors processors = Processors::apart;
};

// Two steps overlap, as the update of one runs under the forward pass of the next; the list is of one.
// `blocks` are PlanRequest::blocks.
std::vector<SimTask> step_tasks(const Plan& plan, std::span<const BlockNeeds> blocks, const WalkCosts& costs,
                                const LaneRates& rates);

Prediction predict(const Plan& plan, std::span<const BlockNeeds> blocks, const WalkCosts& costs,
                   const LaneRates& rates);

}  // namespace sluice
