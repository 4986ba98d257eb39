#include "engine/base/trace.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "engine/base/error.h"

namespace sluice {
namespace {

bool names(std::string_view text, const WorkLabel& label, std::string_view fallback) {
  if (label.verb.empty()) return text == fallback;
  if (!text.starts_with(label.verb)) return false;
  text.remove_prefix(label.verb.size());
  if (label.subject.empty()) return text.empty();
  return text.size() == label.subject.size() + 1 && text.front() == ' ' && text.ends_with(label.subject);
}

}  // namespace

int64_t trace_time_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

int64_t trace_now_ns() {
  return trace_time_ns(std::chrono::steady_clock::now());
}

TraceLane*& this_thread_lane() {
  thread_local TraceLane* lane = nullptr;
  return lane;
}

TraceThread::TraceThread(Trace* trace, const char* name, int order) : before_(this_thread_lane()) {
  if (trace != nullptr) this_thread_lane() = &trace->add_lane(name, order);
}

TraceLane::TraceLane(const Trace& trace, std::string name, int order)
    : trace_(trace), name_(std::move(name)), order_(order) {}

void TraceLane::begin_task(const WorkLabel& label, std::string_view name) {
  task_ = OpenTask{label, name, trace_now_ns()};
}

void TraceLane::end_task(uint64_t bytes) {
  SLUICE_CHECK(task_.has_value());
  const OpenTask task = *std::exchange(task_, std::nullopt);
  add(task.label, task.name, task.begin_ns, trace_now_ns(), bytes);
}

void TraceLane::add_wait(std::string_view what, int64_t begin_ns, int64_t end_ns) {
  if (end_ns - begin_ns < kShortestWaitNs) return;
  if (task_) {
    add(task_->label, task_->name, task_->begin_ns, begin_ns, 0);
    task_->begin_ns = end_ns;
  }
  add({.verb = what, .subject = {}, .step = this_thread_label().step}, what, begin_ns, end_ns, 0);
}

// Either this sees that the recording has ended, or stop() sees that the lane is busy, and waits: both orders
// are sequentially consistent.
void TraceLane::add(const WorkLabel& label, std::string_view name, int64_t begin_ns, int64_t end_ns,
                    uint64_t bytes) {
  busy_.store(true);
  if (trace_.state_.load() == Trace::State::recording) append(label, name, begin_ns, end_ns, bytes);
  busy_.store(false);
}

void TraceLane::append(const WorkLabel& label, std::string_view name, int64_t begin_ns, int64_t end_ns,
                       uint64_t bytes) {
  if (last_) begin_ns = std::max(begin_ns, last_->end_ns);
  end_ns = std::max(end_ns, begin_ns);
  const bool joins = last_ && last_->step == label.step && begin_ns - last_->end_ns <= kGapNs &&
                     names(last_->name, label, name);
  if (!joins) {
    if (last_) keep(std::move(*last_));
    last_ = TraceSpan{.name = label.verb.empty() ? std::string(name) : label.text(),
                      .begin_ns = begin_ns,
                      .step = label.step};
  }
  last_->end_ns = end_ns;
  last_->busy_ns += end_ns - begin_ns;
  last_->bytes += bytes;
  ++last_->task_count;
}

void TraceLane::keep(TraceSpan span) {
  const TraceWindow& window = trace_.window();
  if (trace_.keeps_as_first(span.step)) {
    if (first_steps_.size() < TraceWindow::kMostSpans) return first_steps_.push_back(std::move(span));
    ++dropped_count_;
    return;
  }
  newest_steps_.push_back(std::move(span));
  const int64_t oldest = trace_.newest_step() - window.newest + 1;
  while (!newest_steps_.empty() &&
         (newest_steps_.front().step < oldest || newest_steps_.size() > TraceWindow::kMostSpans)) {
    newest_steps_.pop_front();
    ++dropped_count_;
  }
}

TraceLaneRecord TraceLane::take() {
  if (last_) keep(std::move(*std::exchange(last_, std::nullopt)));
  TraceLaneRecord record{name_, order_, std::move(first_steps_), dropped_count_};
  std::ranges::move(newest_steps_, std::back_inserter(record.spans));
  newest_steps_.clear();
  // Work of one step may come after the first of the next (what is read ahead).
  std::ranges::stable_sort(record.spans, {}, &TraceSpan::begin_ns);
  return record;
}

Trace::Trace(TraceWindow window) : window_(window), steps_(&add_lane("steps", trace_order::kSteps)) {}

TraceLane& Trace::add_lane(std::string name, int order) {
  MutexLock lock(mutex_);
  return *lanes_.emplace_back(std::make_unique<TraceLane>(*this, std::move(name), order));
}

void Trace::begin_step(int64_t step) {
  const int64_t now_ns = trace_now_ns();
  steps_->busy_.store(true);
  State idle = State::idle;
  if (state_.compare_exchange_strong(idle, State::recording)) begin_step_ = step;
  if (state_.load() == State::recording) {
    if (newest_step_ > 0) append_step(now_ns);
    newest_step_ = step;
    step_begin_ns_ = now_ns;
  }
  steps_->busy_.store(false);
  this_thread_label().step = step;
}

bool Trace::keeps_as_first(int64_t step) const {
  const int64_t before = window_.count == TraceWindow::Count::from_start ? begin_step_ - 1 : 0;
  const int64_t number = std::max<int64_t>(step - before, 1);  // what was begun before belongs to the first
  return number >= window_.first && number <= window_.last;
}

void Trace::append_step(int64_t end_ns) {
  const std::string number = std::to_string(newest_step_);
  steps_->append({"step", number, newest_step_}, "", step_begin_ns_, end_ns, 0);
}

std::vector<TraceLaneRecord> Trace::stop() {
  state_.store(State::ended);
  MutexLock lock(mutex_);
  std::vector<TraceLaneRecord> records;
  for (const std::unique_ptr<TraceLane>& lane : lanes_) {
    while (lane->busy_.load()) std::this_thread::yield();  // it is within append(): microseconds
    if (lane.get() == steps_ && newest_step_ > 0) append_step(trace_now_ns());
    TraceLaneRecord record = lane->take();
    if (!record.spans.empty()) records.push_back(std::move(record));
  }
  std::ranges::stable_sort(records, {}, &TraceLaneRecord::order);
  return records;
}

}  // namespace sluice
