#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "engine/base/work_label.h"

// The plan's third reader: what a run did when, lane by lane, to be laid beside what was predicted. Where
// there is no Trace nothing is recorded, and nothing is paid but a null check for each task.
namespace sluice {

// Nanoseconds of the steady clock, which timed devices keep to, too.
int64_t trace_time_ns(std::chrono::steady_clock::time_point time);
int64_t trace_now_ns();

// A stretch of a lane in which it worked on one thing, or waited for one.
struct TraceSpan {
  std::string name;        // "forward layer 3", "wait for disk"
  int64_t begin_ns = 0;    // trace_now_ns()
  int64_t end_ns = 0;      // >= begin_ns
  int64_t busy_ns = 0;     // of it; the rest are gaps too short to be shown
  uint64_t bytes = 0;      // moved; 0: none, or not counted
  int64_t task_count = 0;  // ops, copies or transfers of which it is made
  int64_t step = 0;        // that the work belongs to, from 1; 0: before the first
};

// Spans of one lane: one after another, none overlapping the next.
struct TraceLaneRecord {
  std::string name;
  int order = 0;  // lanes are shown from low to high
  std::vector<TraceSpan> spans;
  int64_t dropped_count = 0;  // spans that the window or the memory had no room for
};

// Which steps are kept: first to last, and so many of the newest. What lies between is dropped.
struct TraceWindow {
  int64_t first = 1;
  int64_t last = 4;
  int64_t newest = 4;
  enum class Count {
    from_start,
    of_run
  } count = Count::from_start;                 // from_start: 1 is the first recorded step
  static constexpr size_t kMostSpans = 32768;  // of a lane's first steps, and as many of its newest
};

class Trace;

// What one thread records; of that thread alone, without locks. Lives as long as its Trace.
class TraceLane {
 public:
  TraceLane(const Trace& trace, std::string name, int order);
  const std::string& name() const { return name_; }

  // Around a task that runs on this thread. One without a label has the name given.
  void begin_task(const WorkLabel& label, std::string_view name);
  void end_task(uint64_t bytes);
  // Something that took that long, by whatever clock (a modelled device's). Where it begins before the last
  // span's end it is cut. The same work again after a gap of at most kGapNs joins the span.
  void add(const WorkLabel& label, std::string_view name, int64_t begin_ns, int64_t end_ns, uint64_t bytes);
  // This thread waited. Cuts the task in which it did in two. Less than kShortestWaitNs is no wait.
  void add_wait(std::string_view what, int64_t begin_ns, int64_t end_ns);

  static constexpr int64_t kGapNs = 100'000;
  static constexpr int64_t kShortestWaitNs = 20'000;

 private:
  friend class Trace;
  struct OpenTask {
    WorkLabel label;
    std::string_view name;
    int64_t begin_ns = 0;
  };
  void append(const WorkLabel& label, std::string_view name, int64_t begin_ns, int64_t end_ns,
              uint64_t bytes);
  void keep(TraceSpan span);
  TraceLaneRecord take();

  const Trace& trace_;
  const std::string name_;
  const int order_;
  std::atomic<bool> busy_ = false;  // see Trace::stop
  std::optional<OpenTask> task_;
  std::optional<TraceSpan> last_;  // may still grow
  std::vector<TraceSpan> first_steps_;
  std::deque<TraceSpan> newest_steps_;
  int64_t dropped_count_ = 0;
};

// The recorder of a run. Outlives all that records. Thread-safe, but for begin_step.
class Trace {
 public:
  explicit Trace(TraceWindow window = {});
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // For the thread that will record into it.
  TraceLane& add_lane(std::string name, int order) EXCLUDES(mutex_);
  // The calling thread's work, and what it submits, belongs to that step of the run from here on; steps are
  // counted from 1. With the first of them the recording begins. One thread.
  void begin_step(int64_t step);
  // Ends the recording, whatever threads still do, and returns it in the order of lanes. Once.
  std::vector<TraceLaneRecord> stop() EXCLUDES(mutex_);

  const TraceWindow& window() const { return window_; }
  int64_t newest_step() const { return newest_step_.load(std::memory_order_relaxed); }
  bool keeps_as_first(int64_t step) const;

 private:
  friend class TraceLane;
  void append_step(int64_t end_ns);

  const TraceWindow window_;
  std::atomic<int64_t> newest_step_ = 0;
  enum class State { idle, recording, ended };
  std::atomic<State> state_ = State::idle;
  std::atomic<int64_t> begin_step_ = 1;  // the first
  Mutex mutex_;
  std::vector<std::unique_ptr<TraceLane>> lanes_ GUARDED_BY(mutex_);
  TraceLane* steps_ = nullptr;  // one span a step
  int64_t step_begin_ns_ = 0;   // guarded as the lane is
};

// Orders of lanes.
namespace trace_order {
inline constexpr int kSteps = 0, kTrainer = 1, kCompute = 2, kCopyIn = 3, kCopyOut = 4, kHost = 5, kDisk = 6;
}  // namespace trace_order

// Where the calling thread records its waits; null: nowhere.
TraceLane*& this_thread_lane();

// A lane for the calling thread while it lives. `trace` may be null.
class TraceThread {
 public:
  TraceThread(Trace* trace, const char* name, int order);
  ~TraceThread() { this_thread_lane() = before_; }
  TraceThread(const TraceThread&) = delete;
  TraceThread& operator=(const TraceThread&) = delete;

 private:
  TraceLane* const before_;
};

// The calling thread waits while it lives.
class TraceWait {
 public:
  // `what` is a literal: "wait for disk".
  explicit TraceWait(std::string_view what)
      : lane_(this_thread_lane()), what_(what), begin_ns_(lane_ != nullptr ? trace_now_ns() : 0) {}
  ~TraceWait() {
    if (lane_ != nullptr) lane_->add_wait(what_, begin_ns_, trace_now_ns());
  }
  TraceWait(const TraceWait&) = delete;
  TraceWait& operator=(const TraceWait&) = delete;

 private:
  TraceLane* const lane_;
  const std::string_view what_;
  const int64_t begin_ns_;
};

// Lanes under one heading: "measured", "predicted".
struct TraceProcess {
  std::string name;
  std::vector<TraceLaneRecord> lanes;
};

// Chrome's trace format, as ui.perfetto.dev and chrome://tracing read it ("Trace Event Format", Google,
// 2016): complete events in microseconds from the earliest one on, processes and threads named. `notes` are
// shown as the file's metadata.
void write_trace_json(std::span<const TraceProcess> processes,
                      std::span<const std::pair<std::string, std::string>> notes,
                      const std::function<void(std::string_view)>& write);

}  // namespace sluice
