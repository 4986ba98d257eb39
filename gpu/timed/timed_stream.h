#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/thread_annotations.h"
#include "gpu/cpu_stream.h"
#include "gpu/stream.h"
#include "gpu/timed/clock.h"

namespace sluice::gpu {

// The parts of a GPU that streams share; each does one thing at a time.
enum class GpuEngine { compute, copy_in, copy_out };

// Who has which engine until when. Thread-safe.
class EngineTimes {
 public:
  // Takes the engine for that long, from `ready_ns` on or as soon as it is free. Returns the end.
  int64_t take(GpuEngine engine, int64_t ready_ns, int64_t duration_ns) EXCLUDES(mutex_);
  int64_t busy_ns(GpuEngine engine) const EXCLUDES(mutex_);

 private:
  struct Times {
    int64_t free_ns = 0;
    int64_t busy_ns = 0;
  };
  mutable Mutex mutex_;
  std::array<Times, 3> times_ GUARDED_BY(mutex_);
};

// A point in a TimedStream: done once the model has come to it, and the inner stream too where there is one.
// Thread-safe; may outlive the stream.
class TimedEvent final : public EventState {
 public:
  TimedEvent(std::optional<Event> inner, Event reached, std::shared_ptr<const int64_t> time_ns)
      : inner_(std::move(inner)), reached_(std::move(reached)), time_ns_(std::move(time_ns)) {}

  bool done() const override;
  void wait() override;
  const std::optional<Event>& inner() const { return inner_; }
  const Event& reached() const { return reached_; }
  // By the model; the event must be reached.
  int64_t time_ns() const;

 private:
  const std::optional<Event> inner_;
  const Event reached_;
  const std::shared_ptr<const int64_t> time_ns_;
};

// A compute or copy stream of a modelled GPU: a thread that sleeps. It keeps the time at which the work so
// far ends by the model, and sleeps until that absolute time only, so what one sleep takes too long is not
// handed on. Work begins when the stream is there, what it waited for is done, it has been submitted and its
// engine is free.
//
// With an inner stream the same work is submitted there too, and the two go on side by side, joined at
// events: results come from the inner stream's order (which a hazard checker sees as ever), time from the
// later of both.
class TimedStream final : public Stream {
 public:
  // `inner` and `trace` may be null. Clock, engines and trace outlive the stream.
  TimedStream(StreamKind kind, std::string name, std::unique_ptr<Stream> inner, Clock& clock,
              EngineTimes& engines, Trace* trace = nullptr);
  ~TimedStream() override;

  Event record() override;
  void wait(const Event& event) override;
  void run(Task task) override;
  struct Work {
    std::string_view name;
    GpuEngine engine = GpuEngine::compute;
    int64_t duration_ns = 0;
    size_t moved_bytes = 0;  // for the trace
  };
  // `host_work`, which may be null, is done meanwhile by the stream's thread.
  void occupy(const Work& work, std::function<void()> host_work = nullptr);
  // Null where there are no numerics.
  Stream* inner() { return inner_.get(); }

 private:
  void go(const Work& work, int64_t submitted_ns, const std::function<void()>& host_work);
  // Waits for what takes real time, on this stream's thread. Throws the event's error.
  void follow(const Event& event);

  Clock& clock_;
  EngineTimes& engines_;
  const std::unique_ptr<Stream> inner_;
  TraceLane* const traced_;  // may be null
  int64_t begin_ns_ = 0;     // of the last work; the thread's
  int64_t time_ns_ = 0;      // the model has come this far; likewise
  CpuStream thread_;         // last: its tasks use the above
};

// A cpu stream beside timed ones: real work in real time.
class CpuStreamBesideTimed final : public Stream {
 public:
  explicit CpuStreamBesideTimed(std::unique_ptr<Stream> inner)
      : Stream(inner->kind(), inner->name()), inner_(std::move(inner)) {}
  Event record() override { return inner_->record(); }
  void wait(const Event& event) override;
  void run(Task task) override { inner_->run(std::move(task)); }

 private:
  const std::unique_ptr<Stream> inner_;
};

}  // namespace sluice::gpu
