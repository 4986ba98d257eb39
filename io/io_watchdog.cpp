#include "io/io_watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <pthread.h>
#include <utility>

#include "engine/base/error.h"

namespace sluice {

std::string LateTransfer::text() const {
  char lasted[32];
  std::snprintf(lasted, sizeof lasted, "%.3g s", seconds);
  const std::string what = kind == IoRequest::Kind::read ? "read" : "write";
  std::string of;
  if (!work.empty()) of = " (" + work + (step > 0 ? ", step " + std::to_string(step) : "") + ")";
  return "the " + what + " of " + std::to_string(size_bytes) + " bytes of " + path + " at offset " +
         std::to_string(offset) + of + " has not returned for " + lasted;
}

// The transfers of a queue, by slot. Its thread writes, checks read.
class IoWatchdog::Watched final : public IoObserver {
 public:
  Watched(IoWatchdog& watchdog, int capacity) : watchdog_(watchdog), slots_(static_cast<size_t>(capacity)) {}
  ~Watched() override {
    MutexLock lock(watchdog_.mutex_);
    std::erase(watchdog_.queues_, this);
  }

  void on_start(int slot, const IoRequest& request) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    slots_[static_cast<size_t>(slot)] = {.request = request,
                                         .work = this_thread_label(),
                                         .begin_ns = watchdog_.now_(),
                                         .stage = Stage::in_flight};
  }
  void on_end(int slot, const IoRequest&, const IoCompletion&) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Slot& at = slots_[static_cast<size_t>(slot)];
    if (at.stage != Stage::in_flight) returned_.push_back(facts(at));
    at.stage = Stage::idle;
  }

  struct Found {
    std::vector<LateTransfer> late, returned, given_up;
  };
  void look(Found& found) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    found.returned.insert(found.returned.end(), returned_.begin(), returned_.end());
    returned_.clear();
    for (Slot& slot : slots_) {
      if (slot.stage == Stage::idle || slot.stage == Stage::given_up) continue;
      const double seconds = watchdog_.seconds_since(slot.begin_ns);
      if (slot.stage == Stage::in_flight && seconds >= watchdog_.timeout_seconds_) {
        slot.stage = Stage::late;
        found.late.push_back(facts(slot));
      }
      if (slot.stage == Stage::late && seconds >= kGiveUp * watchdog_.timeout_seconds_) {
        slot.stage = Stage::given_up;
        found.given_up.push_back(facts(slot));
      }
    }
  }

 private:
  enum class Stage { idle, in_flight, late, given_up };
  struct Slot {
    IoRequest request;
    WorkLabel work;  // of a block that the queue's user keeps for as long as the transfer
    int64_t begin_ns = 0;
    Stage stage = Stage::idle;
  };

  LateTransfer facts(const Slot& slot) const {
    return {.kind = slot.request.kind,
            .path = descriptor_path(slot.request.descriptor),
            .offset = slot.request.offset,
            .size_bytes = slot.request.size_bytes,
            .work = slot.work.text(),
            .step = slot.work.step,
            .seconds = watchdog_.seconds_since(slot.begin_ns)};
  }

  IoWatchdog& watchdog_;
  Mutex mutex_;
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  std::vector<LateTransfer> returned_ GUARDED_BY(mutex_);
};

IoWatchdog::IoWatchdog(double timeout_seconds, Listener listener, Now now)
    : timeout_seconds_(timeout_seconds),
      listener_(std::move(listener)),
      now_(now ? std::move(now) : trace_now_ns) {
  SLUICE_CHECK(timeout_seconds > 0);
}

double IoWatchdog::seconds_since(int64_t begin_ns) const {
  return static_cast<double>(now_() - begin_ns) * 1e-9;
}

std::unique_ptr<IoObserver> IoWatchdog::watch(int capacity) {
  auto watched = std::make_unique<Watched>(*this, capacity);
  MutexLock lock(mutex_);
  queues_.push_back(watched.get());
  return watched;
}

// Told after the locks are given back: a listener may be slow, and one that ends the process needs none of
// these queues.
void IoWatchdog::check() {
  MutexLock one_at_a_time(check_mutex_);
  Watched::Found found;
  {
    MutexLock lock(mutex_);
    for (Watched* queue : queues_) queue->look(found);
  }
  for (const LateTransfer& transfer : found.late)
    if (listener_.late) listener_.late(transfer);
  for (const LateTransfer& transfer : found.returned)
    if (listener_.returned) listener_.returned(transfer);
  for (const LateTransfer& transfer : found.given_up)
    if (listener_.given_up) listener_.given_up(transfer);
}

IoWatchdogThread::IoWatchdogThread(IoWatchdog& watchdog) : watchdog_(watchdog), thread_([this] { work(); }) {}

IoWatchdogThread::~IoWatchdogThread() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void IoWatchdogThread::work() {
  pthread_setname_np(pthread_self(), "io watchdog");
  const auto interval = std::chrono::duration<double>(std::min(1.0, watchdog_.timeout_seconds() / 8));
  MutexLock lock(mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, interval);
    if (stopping_) return;
    lock.unlock();
    watchdog_.check();
    lock.lock();
  }
}

}  // namespace sluice
