#include "gpu/timed/timed_stream.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "gpu/stream_trace.h"

namespace sluice::gpu {
namespace {

// How far ahead of time a stream's thread may be where no event says otherwise: a sleep for each op of a
// tenth of a millisecond would be most of what a timed device costs.
constexpr int64_t kAheadNs = 1'000'000;

const TimedEvent* as_timed(const Event& event) {
  return dynamic_cast<const TimedEvent*>(event.state().get());
}

}  // namespace

int64_t EngineTimes::take(GpuEngine engine, int64_t ready_ns, int64_t duration_ns) {
  MutexLock lock(mutex_);
  Times& times = times_[static_cast<size_t>(engine)];
  times.free_ns = std::max(times.free_ns, ready_ns) + duration_ns;
  times.busy_ns += duration_ns;
  return times.free_ns;
}

int64_t EngineTimes::busy_ns(GpuEngine engine) const {
  MutexLock lock(mutex_);
  return times_[static_cast<size_t>(engine)].busy_ns;
}

bool TimedEvent::done() const {
  return reached_.done() && (!inner_ || inner_->done());
}

void TimedEvent::wait() {
  std::exception_ptr error;
  try {
    reached_.wait();
  } catch (...) {
    error = std::current_exception();
  }
  if (inner_) inner_->wait();  // done already, but its observer learns of the wait
  if (error) std::rethrow_exception(error);
}

int64_t TimedEvent::time_ns() const {
  SLUICE_CHECK(reached_.done(), "the model has not come there yet");
  return *time_ns_;
}

TimedStream::TimedStream(StreamKind kind, std::string name, std::unique_ptr<Stream> inner, Clock& clock,
                         EngineTimes& engines, Trace* trace)
    : Stream(kind, std::move(name)),
      clock_(clock),
      engines_(engines),
      inner_(std::move(inner)),
      traced_(add_stream_lane(trace, *this)),
      thread_(kind, this->name()) {
  SLUICE_CHECK(kind != StreamKind::cpu);
}

TimedStream::~TimedStream() {
  thread_.enqueue({"end", {}, [this] { clock_.sleep_until(time_ns_); }});
}

Event TimedStream::record() {
  std::optional<Event> inner;
  if (inner_) {
    inner = inner_->record();
    thread_.enqueue({"follow", {}, [this, event = *inner] { follow(event); }});
  }
  auto time_ns = std::make_shared<int64_t>(0);
  thread_.enqueue({"record", {}, [this, time_ns] {
                     clock_.sleep_until(time_ns_);
                     *time_ns = time_ns_;
                   }});
  return Event(std::make_shared<TimedEvent>(std::move(inner), thread_.record(), std::move(time_ns)));
}

void TimedStream::wait(const Event& event) {
  const TimedEvent* timed = as_timed(event);
  if (timed == nullptr) {
    if (inner_) inner_->wait(event);
    thread_.enqueue({"follow", {}, [this, event] { follow(event); }});
    return;
  }
  if (inner_ && timed->inner()) inner_->wait(*timed->inner());
  thread_.wait(timed->reached());
  thread_.enqueue({"wait", {}, [this, event, timed] { time_ns_ = std::max(time_ns_, timed->time_ns()); }});
}

void TimedStream::run(Task) {
  SLUICE_CHECK(kind() == StreamKind::cpu, "run is for cpu streams");
}

void TimedStream::occupy(const Work& work, std::function<void()> host_work) {
  thread_.enqueue(
      {work.name, {}, [this, work, submitted_ns = clock_.now_ns(), meanwhile = std::move(host_work)] {
         go(work, submitted_ns, meanwhile);
         if (traced_ != nullptr)
           traced_->add(this_thread_label(), work.name, begin_ns_, time_ns_, work.moved_bytes);
       }});
}

void TimedStream::go(const Work& work, int64_t submitted_ns, const std::function<void()>& host_work) {
  const int64_t ready_ns = std::max(time_ns_, submitted_ns);
  // So that streams come to a shared engine about in the order in which they are ready.
  if (ready_ns - clock_.now_ns() > kAheadNs) clock_.sleep_until(ready_ns);
  time_ns_ = engines_.take(work.engine, ready_ns, work.duration_ns);
  begin_ns_ = time_ns_ - work.duration_ns;
  if (!host_work) return;
  const int64_t before_ns = clock_.now_ns();
  host_work();
  // Where it takes longer than the model: by its own length, as this thread may have come late.
  time_ns_ = std::max(time_ns_, begin_ns_ + (clock_.now_ns() - before_ns));
}

void TimedStream::follow(const Event& event) {
  std::exception_ptr error;
  bool was_done = false;
  if (auto* known = dynamic_cast<CpuEvent*>(event.state().get())) {
    was_done = known->done_without_error();
    error = known->await();  // unlike wait(), not a wait of the host to an observer
  } else {
    was_done = event.done();
    try {
      event.wait();
    } catch (...) {
      error = std::current_exception();
    }
  }
  // What was done when this thread came here was done before the model's time, but for this thread's
  // lateness.
  if (!was_done) time_ns_ = std::max(time_ns_, clock_.now_ns());
  if (error) std::rethrow_exception(error);
}

void CpuStreamBesideTimed::wait(const Event& event) {
  const TimedEvent* timed = as_timed(event);
  if (timed == nullptr) {
    inner_->wait(event);
    return;
  }
  if (timed->inner()) inner_->wait(*timed->inner());
  inner_->wait(timed->reached());
}

}  // namespace sluice::gpu
