#include "engine/schedule/simulate.h"

#include <algorithm>
#include <optional>

#include "engine/base/error.h"

namespace sluice {
namespace {

// What does one thing at a time: a lane, or lanes that share a disk or a processor.
struct Resource {
  double free = 0;
  int last_span = -1;
};

class Simulation {
 public:
  Simulation(std::span<const SimTask> step, const SimOptions& options)
      : step_(step), options_(options), span_of_(step.size() * static_cast<size_t>(options.step_count), -1) {
    for (size_t i = 0; i < step.size(); ++i) {
      queue_of(step[i]).tasks.push_back(static_cast<int>(i));
      check(static_cast<int>(i));
    }
  }

  Timeline run() {
    timeline_.spans.reserve(span_of_.size());
    while (timeline_.spans.size() < span_of_.size()) start(next());
    find_critical_path();
    judge_steady_state();
    return std::move(timeline_);
  }

 private:
  struct Queue {
    Lane lane = Lane::compute;
    int number = 0;
    std::vector<int> tasks = {};  // of a step
    size_t placed = 0;            // of all steps
  };
  struct Start {
    size_t queue = 0;
    double begin = 0;
    int held_up_by = -1;
    size_t submitted = 0;  // position in the order of all steps
  };

  void check(int index) const {
    const SimTask& task = step_[static_cast<size_t>(index)];
    SLUICE_CHECK(task.seconds >= 0, task.label);
    for (const int earlier : task.after) SLUICE_CHECK(earlier >= 0 && earlier < index, task.label);
    for (const int before : task.after_last_step)
      SLUICE_CHECK(before >= 0 && static_cast<size_t>(before) < step_.size(), task.label);
  }

  Queue& queue_of(const SimTask& task) {
    for (Queue& queue : queues_)
      if (queue.lane == task.lane && queue.number == task.queue) return queue;
    return queues_.emplace_back(Queue{task.lane, task.queue});
  }

  Resource& resource(Lane lane) {
    const bool disk = lane == Lane::disk_read || lane == Lane::disk_write;
    if (disk) return resources_[options_.disk == DiskQueue::one ? Lane::disk_read : lane];
    return resources_[options_.processors == Processors::one ? Lane::compute : lane];
  }

  // When the queue's next task can begin; nullopt where something before it is not placed yet, or the queue
  // has none.
  std::optional<Start> head(size_t number) {
    const Queue& queue = queues_[number];
    const size_t step = queue.placed / queue.tasks.size();
    if (step >= static_cast<size_t>(options_.step_count)) return std::nullopt;
    const int index = queue.tasks[queue.placed % queue.tasks.size()];
    const SimTask& task = step_[static_cast<size_t>(index)];
    const Resource& on = resource(queue.lane);
    Start start{number, on.free, on.last_span, step * step_.size() + static_cast<size_t>(index)};
    const auto after = [&](int task_before, size_t step_before) {
      const int span = span_of_[step_before * step_.size() + static_cast<size_t>(task_before)];
      if (span < 0) return false;
      const double end = timeline_.spans[static_cast<size_t>(span)].end;
      if (end > start.begin) {
        start.begin = end;
        start.held_up_by = span;
      }
      return true;
    };
    for (const int before : task.after)
      if (!after(before, step)) return std::nullopt;
    if (step == 0) return start;
    for (const int before : task.after_last_step)
      if (!after(before, step - 1)) return std::nullopt;
    return start;
  }

  // The task that begins first, of those submitted first. Nothing that is not placed yet can begin earlier,
  // as it comes after one of these.
  Start next() {
    std::optional<Start> first;
    for (size_t queue = 0; queue < queues_.size(); ++queue) {
      const std::optional<Start> other = head(queue);
      if (!other) continue;
      const bool earlier = !first || other->begin < first->begin ||
                           (other->begin == first->begin && other->submitted < first->submitted);
      if (earlier) first = other;
    }
    SLUICE_CHECK(first.has_value(), "tasks that wait for one another");
    return *first;
  }

  void start(const Start& next) {
    const size_t task = next.submitted % step_.size();
    const int span = static_cast<int>(timeline_.spans.size());
    const double end = next.begin + step_[task].seconds;
    timeline_.spans.push_back({.step = static_cast<int>(next.submitted / step_.size()),
                               .task = static_cast<int>(task),
                               .begin = next.begin,
                               .end = end,
                               .held_up_by = next.held_up_by});
    span_of_[next.submitted] = span;
    resource(queues_[next.queue].lane) = {end, span};
    ++queues_[next.queue].placed;
  }

  void find_critical_path() {
    const std::vector<Timeline::Span>& spans = timeline_.spans;
    if (spans.empty()) return;
    const auto last = std::ranges::max_element(spans, {}, &Timeline::Span::end);
    timeline_.end_seconds = last->end;
    std::vector<int>& path = timeline_.critical_path;
    for (int span = static_cast<int>(last - spans.begin()); span >= 0;
         span = spans[static_cast<size_t>(span)].held_up_by)
      path.push_back(span);
    std::ranges::reverse(path);
  }

  // Steps may settle into a pattern of several, so the later ones are averaged. Not the last: nothing runs
  // under its end.
  void judge_steady_state() {
    const int to_step = options_.step_count > 2 ? options_.step_count - 1 : options_.step_count;
    const int from_step = to_step / 2;
    const double step_count = to_step - from_step;
    double from = 0, to = 0;
    for (const Timeline::Span& span : timeline_.spans) {
      if (span.step < from_step) from = std::max(from, span.end);
      if (span.step < to_step) to = std::max(to, span.end);
      if (span.step >= from_step && span.step < to_step)
        timeline_.busy_seconds[lane_of(span)] += (span.end - span.begin) / step_count;
    }
    timeline_.step_seconds = (to - from) / step_count;
    for (const int index : timeline_.critical_path) {
      const Timeline::Span& span = timeline_.spans[static_cast<size_t>(index)];
      const double within = std::max(0.0, std::min(span.end, to) - std::max(span.begin, from));
      timeline_.critical_seconds[lane_of(span)] += within / step_count;
    }
  }

  Lane lane_of(const Timeline::Span& span) const { return step_[static_cast<size_t>(span.task)].lane; }

  const std::span<const SimTask> step_;
  const SimOptions& options_;
  std::vector<Queue> queues_;
  PerLane<Resource> resources_;
  std::vector<int> span_of_;  // by position in the order of all steps; -1: not placed
  Timeline timeline_;
};

}  // namespace

Lane Timeline::bottleneck() const {
  const auto& seconds = critical_seconds.values;
  return static_cast<Lane>(std::ranges::max_element(seconds) - seconds.begin());
}

Timeline simulate(std::span<const SimTask> step, const SimOptions& options) {
  SLUICE_CHECK(options.step_count > 0);
  return Simulation(step, options).run();
}

}  // namespace sluice
