#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The plan's second reader: what a step would take, from the seconds of its parts. Pure.
namespace sluice {

// What works at the same time in a step. Each takes its tasks one at a time, those of one queue in the order
// in which they were submitted.
enum class Lane { compute, copy_in, copy_out, disk_read, disk_write, optimizer };
inline constexpr size_t kLaneCount = 6;

constexpr std::string_view name(Lane lane) {
  constexpr std::array<std::string_view, kLaneCount> kNames = {"compute",   "copy_in",    "copy_out",
                                                               "disk_read", "disk_write", "optimizer"};
  return kNames[static_cast<size_t>(lane)];
}

template <class T>
struct PerLane {
  std::array<T, kLaneCount> values = {};
  T& operator[](Lane lane) { return values[static_cast<size_t>(lane)]; }
  const T& operator[](Lane lane) const { return values[static_cast<size_t>(lane)]; }
};

// A move, a computation or an update of one step. Limits (slots, the distance of the prefetch) are
// dependencies too: a move into a slot comes after the last use of what lay there.
struct SimTask {
  Lane lane = Lane::compute;
  double seconds = 0;
  std::vector<int> after = {};            // tasks of this step, earlier in the list
  std::vector<int> after_last_step = {};  // any tasks of the step before: a deferred update
  std::string label = {};                 // "forward layers.3"
  int queue = 0;                          // of the lane: who submits it, where several do
  double bytes = 0;                       // moved; for drawing
};

enum class DiskQueue {
  one,   // reads and writes take turns: what drives do (measured: mixed, the sum of both times)
  apart  // each its own: reads and writes on different drives
};

enum class Processors {
  apart,  // the device has its own
  one     // the device is the CPU: compute, copies and the optimizer take turns
};

struct SimOptions {
  int step_count = 8;  // alike; the steady state is judged by the later half but the last
  DiskQueue disk = DiskQueue::one;
  Processors processors = Processors::apart;
};

struct Timeline {
  struct Span {
    int step = 0;
    int task = 0;
    double begin = 0;
    double end = 0;
    int held_up_by = -1;  // the span at whose end this one began; -1: none
  };
  // In the order in which they begin; for drawing.
  std::vector<Span> spans;
  // Indices of spans: the chain without a gap that ends last, in order. Shortening anything else by a little
  // does not shorten the run.
  std::vector<int> critical_path;
  double end_seconds = 0;  // of all steps

  // In the steady state, per step.
  double step_seconds = 0;
  PerLane<double> busy_seconds;
  PerLane<double> critical_seconds;  // on the critical path; they add up to step_seconds

  // The lane with the most seconds on the critical path: the one whose speed pays most.
  Lane bottleneck() const;
};

// List scheduling: each task begins as soon as its lane is free and all that it comes after has ended. Where
// queues share a lane, or lanes a disk or a processor, the task that can begin first goes first.
//
// The tasks come from whoever knows costs: for a plan, engine/schedule/predict.h.
Timeline simulate(std::span<const SimTask> step, const SimOptions& options = {});

}  // namespace sluice
